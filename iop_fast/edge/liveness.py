"""Both sides judge a session alike: the rules and timers are in `iop_fast.wire.liveness`."""

from iop_fast.wire.liveness import HEARTBEAT_NS as HEARTBEAT_NS
from iop_fast.wire.liveness import LATE_NS as LATE_NS
from iop_fast.wire.liveness import NS_PER_S as NS_PER_S
from iop_fast.wire.liveness import SILENCE_LIMIT_NS as SILENCE_LIMIT_NS
from iop_fast.wire.liveness import Beat as Beat
from iop_fast.wire.liveness import Silence as Silence
