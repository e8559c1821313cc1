"""The paper's identities, checked on fresh random problems: `bplambda verify`."""
