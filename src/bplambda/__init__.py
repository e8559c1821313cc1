"""BP(λ): train recurrent networks without backpropagation through time."""

from . import losses as losses
from .alignment import alignment as alignment
from .cells import RNNCell as RNNCell
from .cells import Told as Told
from .gradcheck import GradCheck as GradCheck
from .gradcheck import gradcheck as gradcheck
from .learner import Learner as Learner
from .learner import LearnerState as LearnerState
from .learner import StepInfo as StepInfo
from .network import Network as Network
from .rules._base import Carry as Carry
from .rules._base import Gradients as Gradients
from .rules._base import Info as Info
from .rules._base import Rule as Rule
from .rules._base import Window as Window
from .rules.bplambda import BPLambda as BPLambda
from .rules.bptt import BPTT as BPTT
from .rules.bptt import NoBPTT as NoBPTT
from .rules.bptt import TruncatedBPTT as TruncatedBPTT
from .rules.nstep import NStepSG as NStepSG
from .rules.offline import OfflineLambdaSG as OfflineLambdaSG
from .rules.online import OnlineLambdaSG as OnlineLambdaSG
from .rules.parallel import DataParallel as DataParallel
from .rules.true_online import TrueOnlineBPLambda as TrueOnlineBPLambda
from .sequence import sequence_gradients as sequence_gradients
from .synthesiser import ConditionalSynthesiser as ConditionalSynthesiser
from .synthesiser import LinearSynthesiser as LinearSynthesiser
from .synthesiser import MLPSynthesiser as MLPSynthesiser
from .targets import Targets as Targets
from .targets import synthetic_gradient_targets as synthetic_gradient_targets

__version__ = "0.1.0"
