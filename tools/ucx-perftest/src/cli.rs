//! The command line: the options of `ucx_perftest`, and some of its own. Turns options into [`Spec`]s; opens
//! nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::builder::TypedValueParser as _;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory as _, FromArgMatches, Parser};
use tools_common::units::parse_count;
use ucs::sys::pmix::Pmix;

mod compat;
mod sizes;
mod values;

use crate::cpu_list::CpuList;
use crate::fail::Failure;
use crate::payload::SEQ_LEN;
use crate::plot::svg_path;
use crate::spec::{
    Arrival, Banner, Histogram, Layer, Layout, Level, Memory, Pages, Passive, Pattern, Receive, Spec,
    TagMatch, Target, Test, Validate, Waiting,
};

pub use compat::CompatArgs;
pub use sizes::Sizes;
pub use values::{ErrorMode, Threads};

/// Measures transports (am, put, get, atomics) and protocols (tag matching) between two processes.
///
/// The server waits: `ucx-perftest`. The client names it: `ucx-perftest HOST -t am_lat -x posix -d memory`.
/// Both at once on this host: `ucx-perftest --local -t tag_lat`; without -t a short sweep of tests.
#[derive(Parser, Debug, Clone)]
#[command(version, name = "ucx-perftest", after_help = after_help(), disable_version_flag = true, args_override_self = true)]
pub struct Cli {
    /// Server to connect to; without it this is the server
    pub host: Option<String>,

    /// Start both sides here, as two processes pinned to two cores
    #[arg(long, conflicts_with_all = ["host", "loopback"])]
    pub local: bool,

    /// Processes; more than two need --local or a launcher (mpirun, srun)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=64), allow_negative_numbers = true)]
    pub procs: Option<u32>,

    /// Loopback: one process that communicates with itself
    #[arg(short = 'l', conflicts_with = "host")]
    pub loopback: bool,

    /// File of tests, one per line: name, then options; repeatable: the tests are combined
    #[arg(short, value_name = "FILE")]
    pub batch: Vec<std::path::PathBuf>,

    /// TCP port for the exchange of addresses
    #[arg(short, default_value_t = 13337, value_parser = clap::builder::StringValueParser::new().try_map(|s| port(&s)), allow_negative_numbers = true)]
    pub port: u16,

    /// Address that the server listens on [default: all of this host, as ucx_perftest]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["host", "local", "loopback"])]
    pub bind: Option<IpAddr>,

    /// Cores to run on; with --local first the server's, then as many of the client's; with -T one per
    /// thread, in order
    #[arg(short, value_name = "CPULIST", value_parser = clap::builder::StringValueParser::new().try_map(|s| CpuList::parse(&s)), allow_negative_numbers = true)]
    pub cpus: Option<CpuList>,

    /// IPv6 for the exchange of addresses
    #[arg(short = '6')]
    pub ipv6: bool,

    /// Thousands separators
    #[arg(short = 'N')]
    pub numeric: bool,

    /// Only the final line of a test
    #[arg(short = 'f')]
    pub only_final: bool,

    /// CSV
    #[arg(short = 'v', conflicts_with = "json")]
    pub csv: bool,

    /// One JSON object per result
    #[arg(long)]
    pub json: bool,

    /// Also print the distribution of times
    #[arg(long, conflicts_with = "csv")]
    pub hist: bool,

    /// Draw the results over the message size, as SVG
    #[arg(long, value_name = "FILE.svg", value_parser = clap::builder::PathBufValueParser::new().try_map(svg_path))]
    pub plot: Option<std::path::PathBuf>,

    /// Saved results (lines of --json) to draw too; repeatable
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub with: Vec<std::path::PathBuf>,

    /// Also print transport, device and protocol of the operations
    #[arg(short = 'X')]
    pub extra: bool,

    /// Print no banner
    #[arg(short)]
    pub quiet: bool,

    /// Version
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,

    /// The other side of --local: connects to its parent instead of waiting for a client.
    #[arg(long, hide = true, value_name = "PORT")]
    pub peer_of: Option<u16>,

    /// Number of a `--peer-of` process in its group, and size of the group.
    #[arg(long, hide = true, value_name = "N/SIZE", requires = "peer_of", value_parser = place)]
    pub proc: Option<(u32, u32)>,

    /// Options on the command line, as they are written.
    #[arg(skip)]
    pub given: Vec<String>,

    /// Start by a launcher (PMIx): 0 no, 1 yes; default: if there is one
    #[arg(short = 'P', value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub launcher: Option<u8>,

    // Last: its last options have a heading of their own.
    #[command(flatten)]
    pub test: TestArgs,
}

/// Options that a batch line may have too.
#[derive(Args, Debug, Clone, Default)]
pub struct TestArgs {
    /// Test (see below)
    #[arg(short, value_name = "TEST", value_parser = clap::builder::StringValueParser::new().try_map(|s| Test::parse(&s)))]
    pub test: Option<Test>,

    /// Transport, such as posix; for high-level tests a list as in UCX_TLS
    #[arg(short = 'x', value_name = "TL")]
    pub tl: Option<String>,

    /// Device of the transport [default: the only one there is]
    #[arg(short, value_name = "DEVICE")]
    pub dev: Option<String>,

    /// Low level, data path: short, shortiov, bcopy, zcopy; default: the first that fits. High level: contig,
    /// iov of sender and, after a comma, receiver
    #[arg(short = 'D', value_name = "LAYOUT[,LAYOUT]", value_parser = clap::builder::StringValueParser::new().try_map(|s| layouts(&s)))]
    pub layout: Option<(Layout, Option<Layout>)>,

    /// Message size [default: 8]; a,b: pieces of one message; size:count: so many; from..to: a range in
    /// powers of two
    #[arg(short, value_name = "SIZE", value_parser = clap::builder::StringValueParser::new().try_map(|s| Sizes::parse(&s)), allow_negative_numbers = true)]
    pub size: Option<Sizes>,

    /// Iterations [default: 1000000]
    #[arg(short = 'n', value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
    pub iters: Option<u64>,

    /// Iterations before measuring [default: 10000, at most a tenth of -n]
    #[arg(short, value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
    pub warmup: Option<u64>,

    /// Outstanding operations [default, also 0: 32 or 1, as the test has it]
    #[arg(short = 'O', value_name = "COUNT", allow_negative_numbers = true)]
    pub window: Option<u32>,

    /// Active messages sent before the receiver must have answered [default: 127]
    #[arg(short = 'W', value_name = "COUNT", allow_negative_numbers = true)]
    pub credits: Option<u32>,

    /// Check every byte, on both sides
    #[arg(short = 'V', long)]
    pub validate: bool,

    /// Do not progress the passive side of one-sided tests
    #[arg(short = 'o')]
    pub idle_passive: bool,

    /// Wildcard tag
    #[arg(short = 'C')]
    pub any_tag: bool,

    /// Probe for each message before receiving it
    #[arg(short = 'U')]
    pub unexpected: bool,

    /// Endpoints that report a failed peer; attached, a mode: -epeer, -enone
    #[arg(short = 'e')]
    pub peer_errors: bool,

    /// The mode of `-eMODE`.
    #[arg(long = "errors", hide = true, value_name = "MODE", value_parser = clap::builder::StringValueParser::new().try_map(|s| ErrorMode::parse(&s)))]
    pub errors: Option<ErrorMode>,

    /// Traffic pattern: pairs, incast (all to the first), alltoall
    #[arg(long, value_name = "NAME", value_parser = clap::builder::StringValueParser::new().try_map(|s| Pattern::parse_name(&s)))]
    pub pattern: Option<Pattern>,

    /// Header of active messages, bytes [default: 0; low level 8, another with zcopy]
    #[arg(short = 'H', value_name = "SIZE", value_parser = tools_common::units::parse_bytes, allow_negative_numbers = true)]
    pub header: Option<usize>,

    /// While a high-level test waits: poll, sleep [default: poll]
    #[arg(short = 'E', value_name = "MODE", value_parser = clap::builder::StringValueParser::new().try_map(|s| Waiting::parse_name(&s)))]
    pub waiting: Option<Waiting>,

    /// Distance between the starts of the pieces of a message, bytes; 0: they are side by side [default: 0]
    #[arg(short = 'i', value_name = "SIZE", value_parser = tools_common::units::parse_bytes, allow_negative_numbers = true)]
    pub stride: Option<usize>,

    /// Allocate pages on first use: memory of low-level tests, and with --own that of high-level ones
    #[arg(short = 'B')]
    pub lazy: bool,

    /// Allocate the local memory of one-sided high-level tests by a transport too, and require it for
    /// messages
    #[arg(short = 'z')]
    pub registered: bool,

    /// Use memory of the program instead of memory allocated by a transport: messages are sent from it, and
    /// one-sided operations read and write it at the target
    #[arg(long = "own")]
    pub own: bool,

    /// How stream tests receive: recv, recv_data (in memory of the library) [default: recv]
    #[arg(short = 'r', value_name = "MODE", value_parser = clap::builder::StringValueParser::new().try_map(|s| Receive::parse_name(&s)))]
    pub receive: Option<Receive>,

    /// Thread mode of the worker or low-level interface: single, serialized, multi [default: single]; each
    /// thread has its own
    #[arg(short = 'M', value_name = "LEVEL", value_parser = clap::builder::StringValueParser::new().try_map(|s| Level::parse_name(&s)))]
    pub level: Option<Level>,

    /// Threads per process: each has its own interface or worker and its own partner, with -l itself
    /// [default: 1]
    #[arg(short = 'T', value_name = "COUNT", value_parser = clap::builder::StringValueParser::new().try_map(|s| Threads::parse(&s)), allow_negative_numbers = true)]
    pub threads: Option<Threads>,

    /// Percentile of the first column [default: 50]
    #[arg(short = 'R', value_name = "RANK", value_parser = rank, allow_negative_numbers = true)]
    pub rank: Option<f64>,

    /// Copy the data in the handler of high-level active messages
    #[arg(short = 'y')]
    pub copies: bool,

    #[command(flatten)]
    pub later: CompatArgs,
}

impl TestArgs {
    /// These options, with those of `base` where they are not given.
    pub fn over(self, base: &TestArgs) -> TestArgs {
        TestArgs {
            test: self.test.or(base.test),
            tl: self.tl.or_else(|| base.tl.clone()),
            dev: self.dev.or_else(|| base.dev.clone()),
            layout: self.layout.or(base.layout),
            size: self.size.or_else(|| base.size.clone()),
            iters: self.iters.or(base.iters),
            warmup: self.warmup.or(base.warmup),
            window: self.window.or(base.window),
            credits: self.credits.or(base.credits),
            validate: self.validate || base.validate,
            idle_passive: self.idle_passive || base.idle_passive,
            any_tag: self.any_tag || base.any_tag,
            unexpected: self.unexpected || base.unexpected,
            peer_errors: self.peer_errors || base.peer_errors,
            // `-e` means mode `peer`, whatever `base` says.
            errors: if self.peer_errors { self.errors } else { self.errors.or(base.errors) },
            pattern: self.pattern.or(base.pattern),
            header: self.header.or(base.header),
            waiting: self.waiting.or(base.waiting),
            stride: self.stride.or(base.stride),
            lazy: self.lazy || base.lazy,
            registered: self.registered || base.registered,
            own: self.own || base.own,
            copies: self.copies || base.copies,
            receive: self.receive.or(base.receive),
            level: self.level.or(base.level),
            threads: self.threads.or(base.threads),
            rank: self.rank.or(base.rank),
            later: self.later.over(&base.later),
        }
    }

    /// The tests asked for: one, or one for each size of a range.
    pub fn specs(&self, names: &[String]) -> Result<Vec<Spec>, Failure> {
        self.entries(names)?.into_iter().map(|row| row.spec).collect()
    }

    pub fn rank(&self) -> f64 {
        self.rank.unwrap_or(50.0)
    }

    /// As [`specs`](Self::specs), each with an error of its own; an error that all share is returned.
    pub fn entries(&self, names: &[String]) -> Result<Vec<TestEntry>, Failure> {
        self.later.check().map_err(Failure::Usage)?;
        let Some(test) = self.test else {
            return Err(Failure::Usage(
                "no test: choose one with -t (see -h), or --local for a short sweep of tests".into(),
            ));
        };
        let threads = self.threads.map_or(Ok(1), Threads::count).map_err(Failure::Usage)?;
        let peer_errors =
            self.errors.map_or(Ok(self.peer_errors), ErrorMode::reported).map_err(Failure::Usage)?;
        let sizes = self.size.clone().unwrap_or(Sizes::Pieces(vec![8]));
        let iters = self.iters.unwrap_or(1_000_000);
        let in_size_range = matches!(sizes, Sizes::Range(..));
        // Like `ucx_perftest`: a layout without pieces sends their sum in one piece, and -i has no effect.
        let in_pieces = self.layout.is_some_and(|(sender, receiver)| {
            let has = |l| matches!(l, Layout::Iov | Layout::ShortIov | Layout::Zcopy);
            has(sender) || receiver.is_some_and(has)
        });
        let header = if test.layer() == Layer::Uct && test.is_am() { SEQ_LEN } else { 0 };
        let one = |pieces: Vec<usize>| {
            let pieces = match pieces.iter().try_fold(0usize, |sum, n| sum.checked_add(*n)) {
                Some(sum) if !in_pieces => vec![sum],
                _ => pieces,
            };
            let spec = Spec {
                names: names.to_vec(),
                in_size_range,
                test,
                tl: self.tl.clone(),
                dev: self.dev.clone(),
                layout: self.layout.map(|(sender, _)| sender),
                recv_layout: self.layout.and_then(|(_, receiver)| receiver),
                pieces,
                iters,
                warmup: self.warmup.unwrap_or(10_000.min(iters / 10)),
                window: self.window.filter(|w| *w > 0).unwrap_or(test.window()),
                credits: self.credits.unwrap_or(127),
                validate: if self.validate { Validate::Yes } else { Validate::No },
                passive: if self.idle_passive { Passive::Idle } else { Passive::Progress },
                tag_match: if self.any_tag { TagMatch::Any } else { TagMatch::Exact },
                arrival: if self.unexpected { Arrival::Unexpected } else { Arrival::Expected },
                peer_errors,
                pattern: self.pattern.unwrap_or(Pattern::Pairs),
                am_header: self.header.unwrap_or(header),
                waiting: self.waiting.unwrap_or(Waiting::Poll),
                stride: self.stride.filter(|_| in_pieces).unwrap_or(0),
                pages: if self.lazy { Pages::Lazy } else { Pages::Now },
                memory: match (self.registered, self.own || test.is_ucp_rma()) {
                    (true, _) => Memory::Registered,
                    (false, true) => Memory::Plain,
                    (false, false) => Memory::Allocated,
                },
                target: if self.own { Target::Own } else { Target::Allocated },
                copies: self.copies,
                receive: self.receive.unwrap_or(Receive::Recv),
                level: self.level.unwrap_or(Level::Single),
                threads,
                rank: self.rank(),
                banner: Banner::Shown,
                hist: Histogram::No,
            };
            TestEntry { label: spec.label(), spec: spec.check().map(|()| spec) }
        };
        Ok(sizes.all().into_iter().map(one).collect())
    }
}

impl Cli {
    /// Parses a command line. `Err(None)`: help or version was printed.
    pub fn read<T: Into<std::ffi::OsString> + Clone>(
        args: impl IntoIterator<Item = T>,
    ) -> Result<Cli, Option<Failure>> {
        let args = args.into_iter().map(|arg| attached(arg.into()));
        let mut command = Cli::command();
        let read = || {
            let matches = command.try_get_matches_from_mut(args)?;
            let given = given(&command, &matches);
            Ok(Cli {
                given,
                ..Cli::from_arg_matches(&matches).map_err(|e: clap::Error| e.format(&mut command))?
            })
        };
        let cli = read().map_err(|e: clap::Error| refusal(&e))?;
        if cli.procs.is_some() && !cli.local && !cli.is_launched() {
            let line = "--procs needs --local, or a launcher such as mpirun or srun";
            return Err(Some(Failure::Usage(line.into())));
        }
        Ok(cli)
    }

    pub fn is_launched(&self) -> bool {
        let alone = self.host.is_none() && !self.loopback && !self.local;
        alone && self.launcher.map_or_else(Pmix::is_there, |launcher| launcher == 1)
    }

    /// The address of all interfaces, in the family of `-6`.
    pub fn any_addr(&self) -> IpAddr {
        if self.ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    }

    /// The address that the server listens on.
    pub fn bind_addr(&self) -> IpAddr {
        self.bind.unwrap_or_else(|| self.any_addr())
    }
}

#[derive(Args, Debug, Clone, Default)]
pub struct LineArgs {
    #[command(flatten)]
    pub test: TestArgs,

    /// Print no banner of this test
    #[arg(short)]
    pub quiet: bool,

    /// Loopback: accepted in runs with -l
    #[arg(short = 'l')]
    pub loopback: bool,
}

#[derive(Debug)]
pub struct TestEntry {
    pub label: Option<String>,
    pub spec: Result<Spec, Failure>,
}

pub fn read_line(words: &[String]) -> Result<LineArgs, Failure> {
    let command = LineArgs::augment_args(
        clap::Command::new("batch").no_binary_name(true).disable_help_flag(true).args_override_self(true),
    );
    let matches = command.try_get_matches_from(words.iter().map(|word| attached(word.into())));
    matches
        .and_then(|m| LineArgs::from_arg_matches(&m))
        .map_err(|e| refusal(&e).unwrap_or_else(|| Failure::Usage("help is no option of a test".into())))
}

fn refusal(e: &clap::Error) -> Option<Failure> {
    if !e.use_stderr() {
        tools_common::out::line(e.render().to_string().trim_end());
        return None;
    }
    let text = e.render().to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    // The text of a value parser says all; clap's text around it repeats the option's declaration.
    let line = match (first.starts_with("invalid value"), first.split_once(": ")) {
        (true, Some((frame, words))) => match frame.split_once("for '") {
            Some((_, option)) => format!("{}: {words}", option.split([' ', '\'']).next().unwrap_or_default()),
            None => words.to_owned(),
        },
        _ => format!("{first} (see ucx-perftest -h)"),
    };
    Some(Failure::Usage(line))
}

/// Like `ucx_perftest`, `-e` takes a value only if it is attached (`-epeer`).
fn attached(arg: std::ffi::OsString) -> std::ffi::OsString {
    match arg.to_str().and_then(|arg| arg.strip_prefix("-e")).filter(|mode| !mode.is_empty()) {
        Some(mode) => format!("--errors={mode}").into(),
        None => arg,
    }
}

fn given(command: &clap::Command, matches: &ArgMatches) -> Vec<String> {
    let stands = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let name = |arg: &clap::Arg| match (arg.get_short(), arg.get_long()) {
        (_, Some("errors")) => "-e".to_owned(),
        (Some(letter), _) => format!("-{letter}"),
        (None, long) => format!("--{}", long.unwrap_or_default()),
    };
    let ids: Vec<&str> = matches.ids().map(clap::Id::as_str).filter(|id| stands(id)).collect();
    command.get_arguments().filter(|arg| ids.contains(&arg.get_id().as_str())).map(name).collect()
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(format!("'{text}' is not a port (1 to 65535)")),
    }
}

/// `SENDER[,RECEIVER]`; without a receiver's layout a high-level test uses the sender's for both.
fn layouts(text: &str) -> Result<(Layout, Option<Layout>), String> {
    let Some((sender, receiver)) = text.split_once(',') else {
        let both = Layout::parse_name(text)?;
        return Ok((both, matches!(both, Layout::Contig | Layout::Iov).then_some(both)));
    };
    Ok((Layout::parse_name(sender)?, Some(Layout::parse_name(receiver)?)))
}

fn place(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once('/').and_then(|(n, size)| Some((n.parse().ok()?, size.parse().ok()?)));
    numbers.filter(|(n, size)| n < size).ok_or_else(|| format!("'{text}' is no place in a group"))
}

fn rank(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(r) if (0.0..=100.0).contains(&r) => Ok(r),
        _ => Err(format!("'{text}' is not a percentile (0 to 100)")),
    }
}

fn after_help() -> String {
    let mut text = String::from("Tests:\n");
    for test in Test::ALL {
        let layer = if test.layer() == Layer::Uct { "UCT" } else { "UCP" };
        text += &format!("  {:>13}  {layer} {}\n", test.name(), test.about());
    }
    // Broken by hand to the width of the wrapped lines.
    text += "\nPing-pong tests (*_lat) report half a round trip, the others time per message. High-level tests\n\
             take their transports from -x, or from UCX_TLS and UCX_NET_DEVICES. `ucx-info -d` lists\n\
             transports and devices, `ucx-info -c` every variable.";
    text
}

#[cfg(test)]
mod tests;
