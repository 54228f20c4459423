//! Options of `ucx_perftest` that have one possible value here. That value is accepted, another is refused
//! with the reason.

use clap::Args;

/// Heading of these options in the help text.
const HEADING: &str = "Options of ucx_perftest that have one value, or none, here";

#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = HEADING)]
pub struct CompatArgs {
    /// Memory of messages, of sender and receiver [default: host]
    #[arg(short = 'm', value_name = "MEM[,MEM]")]
    memory: Option<String>,
    #[arg(
        short = 'A',
        value_name = "MODE",
        help = "asynchronous progress: thread, thread_spinlock, thread_mutex, signal; nothing here runs beside the caller"
    )]
    asynchronous: Option<String>,
    #[arg(short = 'I', help = "wake-up feature: every worker here can sleep and wake")]
    _wake: bool,
    #[arg(short = 'K', value_name = "DEVICE", help = "start by InfiniBand management datagrams: refused")]
    mad: Option<String>,
    #[arg(short = 'a', value_name = "DEVICE", help = "accelerator: refused")]
    accelerator: Option<String>,
    #[arg(short = 'L', value_name = "LEVEL", help = "cooperation of accelerator threads: refused")]
    cooperation: Option<String>,
    #[arg(short = 'F', value_name = "SIZE", help = "flow control of accelerator tests: refused")]
    device_flow: Option<String>,
    #[arg(short = 'Y', value_name = "MODE", help = "channels of accelerator tests: refused")]
    channels: Option<String>,
    #[arg(
        short = 'g',
        long = "daemon-local",
        value_name = "IP[:PORT]",
        help = "offload daemon of this side: refused"
    )]
    daemon: Option<String>,
    #[arg(
        short = 'G',
        long = "daemon-remote",
        value_name = "IP[:PORT]",
        help = "offload daemon of the other side: refused"
    )]
    far_daemon: Option<String>,
}

/// Memory types of `ucx_perftest`, and the library that they need.
const DEVICES: [(&str, &str); 7] = [
    ("cuda", "CUDA"),
    ("cuda-managed", "CUDA"),
    ("rocm", "ROCm"),
    ("rocm-managed", "ROCm"),
    ("ze-host", "oneAPI Level Zero"),
    ("ze-device", "oneAPI Level Zero"),
    ("ze-managed", "oneAPI Level Zero"),
];

impl CompatArgs {
    pub fn over(self, base: &CompatArgs) -> CompatArgs {
        let base = base.clone();
        CompatArgs {
            memory: self.memory.or(base.memory),
            asynchronous: self.asynchronous.or(base.asynchronous),
            _wake: self._wake || base._wake,
            mad: self.mad.or(base.mad),
            accelerator: self.accelerator.or(base.accelerator),
            cooperation: self.cooperation.or(base.cooperation),
            device_flow: self.device_flow.or(base.device_flow),
            channels: self.channels.or(base.channels),
            daemon: self.daemon.or(base.daemon),
            far_daemon: self.far_daemon.or(base.far_daemon),
        }
    }

    /// Returns the reason why a given value is not supported.
    pub fn check(&self) -> Result<(), String> {
        self.memory.as_deref().map_or(Ok(()), memory)?;
        match self.asynchronous.as_deref() {
            // Progress happens only in calls of the program, whatever is asked for.
            None | Some("thread" | "thread_spinlock" | "thread_mutex" | "signal") => {}
            Some(other) => {
                return Err(format!(
                    "-A: mode '{other}' is unknown (there are: thread, thread_spinlock, thread_mutex, signal)"
                ));
            }
        }
        let accelerator = "this program was built without accelerators";
        let none = [
            (
                &self.mad,
                "-K: no InfiniBand management datagrams here: start by TCP (HOST), --local or a launcher",
            ),
            (&self.daemon, "-g: there is no daemon to give operations to"),
            (&self.far_daemon, "-G: there is no daemon to give operations to"),
            (&self.accelerator, &format!("-a: {accelerator}")),
            (&self.cooperation, &format!("-L: {accelerator}")),
            (&self.device_flow, &format!("-F: {accelerator}; -W is the flow control of am_bw")),
            (&self.channels, &format!("-Y: {accelerator}")),
        ];
        none.iter().find(|(asked, _)| asked.is_some()).map_or(Ok(()), |(_, why)| Err((*why).into()))
    }
}

fn memory(text: &str) -> Result<(), String> {
    let kinds: Vec<&str> = text.split(',').collect();
    if kinds.len() > 2 {
        return Err(format!("-m {text}: one kind of memory, or two: the sender's and the receiver's"));
    }
    match kinds.iter().find(|kind| **kind != "host") {
        None => Ok(()),
        Some(kind) => match DEVICES.iter().find(|(name, _)| name == kind) {
            Some((_, whose)) => {
                Err(format!("-m {kind}: this program was built without {whose} (there is: host)"))
            }
            None => Err(format!("-m: memory '{kind}' is unknown (there is: host)")),
        },
    }
}
