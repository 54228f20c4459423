//! The command line: options of `ucx_info`. One without a meaning here is refused with the reason.

use clap::Parser;
use clap::builder::TypedValueParser as _;
use tools_common::units::{parse_bytes, parse_count};
use uct::api::DevKind;

/// Shows version, machine, configuration, devices and protocol choice; says what is missing or slow.
#[derive(Parser, Debug)]
#[command(name = "ucx-info", disable_version_flag = true)]
pub struct Args {
    /// Version
    #[arg(short)]
    pub version: bool,

    /// How it was built
    #[arg(short)]
    pub build: bool,

    /// The machine, and how fast it copies memory
    #[arg(short)]
    pub system: bool,

    /// Processors, caches and nodes only
    #[arg(short = 'T')]
    pub topology: bool,

    /// How fast it copies memory only
    #[arg(short = 'M')]
    pub copies: bool,

    /// Sizes of types and of packet headers
    #[arg(short = 'y')]
    pub types: bool,

    /// Configuration: every variable with its value, origin, default, unit and meaning
    #[arg(short)]
    pub config: bool,

    /// As -c, which prints everything in any case
    #[arg(short = 'f')]
    pub full: bool,

    /// Devices and transports, with what each can do
    #[arg(short)]
    pub devices: bool,

    /// Transports that a context chooses
    #[arg(short = 'p')]
    pub context: bool,

    /// A worker: its interfaces and its address
    #[arg(short)]
    pub worker: bool,

    /// Protocol by size between two workers, and why
    #[arg(short)]
    pub endpoint: bool,

    /// Memory of this size that peers may reach, and its keys
    #[arg(short, value_name = "SIZE[,TYPE]", value_parser = clap::builder::StringValueParser::new().try_map(|s| memory(&s)))]
    pub memory: Option<usize>,

    /// Report what is missing or slow on this machine, and what to do; exit status 1 if something does not
    /// work
    #[arg(long)]
    pub doctor: bool,

    /// Measure what copies, kernel and devices cost here, and keep it for contexts with UCX_CALIBRATE=y
    #[arg(long)]
    pub calibrate: bool,

    /// With -c: only NAME=value lines
    #[arg(long)]
    pub plain: bool,

    /// With -c: variables that have their default as comments
    #[arg(short = 'C')]
    pub comment: bool,

    /// With -c: only variables whose name contains this
    #[arg(short = 'F', value_name = "TEXT")]
    pub filter: Option<String>,

    /// With -c: hidden variables too (there are none)
    #[arg(short = 'a')]
    pub hidden: bool,

    /// With -d: only this transport
    #[arg(short, value_name = "NAME")]
    pub transport: Option<String>,

    /// Features of a program: a atomics, r puts and gets, t tags, s streams, m active messages, and w
    /// wake-up, e error handling, which every worker has; -e shows what these need [default: all]
    #[arg(short = 'u', value_name = "LETTERS", value_parser = clap::builder::StringValueParser::new().try_map(|s| Features::parse(&s)))]
    pub features: Option<Features>,

    /// With -p, -w, -e, -m: devices to choose from: all, shm, net, self [default: all]
    #[arg(short = 'D', value_name = "TYPE", value_parser = clap::builder::StringValueParser::new().try_map(|s| Devices::parse(&s)))]
    pub only: Option<Devices>,

    /// With -e: location of the peer: self (this process), intra (this node), inter (another) [default: any]
    #[arg(short = 'P', value_name = "PLACE", value_parser = clap::builder::StringValueParser::new().try_map(|s| PeerLocation::parse(&s)))]
    pub place: Option<PeerLocation>,

    /// How many endpoints there will be (nothing here depends on it)
    #[arg(short = 'n', value_name = "COUNT", value_parser = parse_count)]
    pub endpoints: Option<u64>,

    /// How many of them on this node (nothing here depends on it)
    #[arg(short = 'N', value_name = "COUNT", value_parser = parse_count)]
    pub endpoints_here: Option<u64>,

    /// Address of an endpoint by client and server: refused, because endpoints are made of worker addresses
    #[arg(short = 'A', value_name = "IP")]
    ip: Option<String>,

    /// -A is one of IPv6: refused as -A is
    #[arg(short = '6')]
    ipv6: bool,

    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

const NOTHING: &str = "say what to show: -v, -b, -s, -T, -M, -y, -c, -d, -p, -w, -e, -m, --doctor or --calibrate (see ucx-info -h)";

impl Args {
    /// Parses a command line. `Err(None)`: help was printed.
    pub fn read<T: Into<std::ffi::OsString> + Clone>(
        args: impl IntoIterator<Item = T>,
    ) -> Result<Args, Option<String>> {
        let args = match Args::try_parse_from(args) {
            Ok(args) => args,
            Err(e) if !e.use_stderr() => {
                tools_common::out::line(e.render().to_string().trim_end());
                return Err(None);
            }
            Err(e) => return Err(Some(refusal(&e))),
        };
        args.check().map_err(Some)?;
        Ok(args)
    }

    pub fn wants_ucp(&self) -> bool {
        self.context || self.worker || self.endpoint || self.memory.is_some()
    }

    pub fn wants_config(&self) -> bool {
        self.config || self.full
    }

    fn check(&self) -> Result<(), String> {
        if self.ip.is_some() || self.ipv6 {
            return Err(
                "-A and -6: endpoints are made of the address of a worker here, not of an IP address".into(),
            );
        }
        let asked =
            [self.version, self.build, self.system, self.topology, self.copies, self.types, self.devices];
        let asked =
            asked.contains(&true) || self.wants_ucp() || self.wants_config() || self.doctor || self.calibrate;
        if !asked {
            return Err(NOTHING.into());
        }
        let of_ucp = "-p, -w, -e and -m";
        let needs = [
            ("--plain", self.plain, self.wants_config(), "-c"),
            ("-C", self.comment, self.wants_config(), "-c"),
            ("-F", self.filter.is_some(), self.wants_config(), "-c"),
            ("-a", self.hidden, self.wants_config(), "-c"),
            ("-t", self.transport.is_some(), self.devices, "-d"),
            ("-P", self.place.is_some(), self.endpoint, "-e"),
            ("-D", self.only.is_some(), self.wants_ucp(), of_ucp),
        ];
        match needs.iter().find(|(_, given, there, _)| *given && !there) {
            Some((letter, _, _, what)) => {
                Err(format!("{letter} is for {what}, which is not asked for (see ucx-info -h)"))
            }
            None => Ok(()),
        }
    }
}

fn refusal(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    // The text of a value parser says all; clap's text around it repeats the option's declaration.
    match (line.starts_with("invalid value"), line.split_once(": ")) {
        (true, Some((_, words))) => words.to_owned(),
        _ => format!("{line} (see ucx-info -h)"),
    }
}

/// Features of `-u`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub tags: bool,
    /// Active messages and streams.
    pub messages: bool,
    pub rma: bool,
    pub atomics: bool,
}

impl Features {
    pub const ALL: Features = Features { tags: true, messages: true, rma: true, atomics: true };

    fn parse(letters: &str) -> Result<Features, String> {
        let mut all = Features::default();
        for letter in letters.chars() {
            match letter {
                'a' => all.atomics = true,
                'r' => all.rma = true,
                't' => all.tags = true,
                's' | 'm' => all.messages = true,
                // Every worker has wake-up and error handling.
                'w' | 'e' => {}
                'x' => return Err("-u x: a handle of memory cannot be given to others here: a key is".into()),
                'd' => return Err("-u d: this program was built without accelerators".into()),
                other => {
                    return Err(format!(
                        "-u: feature '{other}' is unknown (there are: a, r, t, s, m, with w, e)"
                    ));
                }
            }
        }
        match all == Features::default() {
            true => Err(format!("-u '{letters}': at least one of a, r, t, s, m")),
            false => Ok(all),
        }
    }
}

/// Device types of `-D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    All,
    Only(DevKind),
}

impl Devices {
    fn parse(name: &str) -> Result<Devices, String> {
        match name.to_ascii_lowercase().as_str() {
            "all" => Ok(Devices::All),
            "shm" => Ok(Devices::Only(DevKind::Shm)),
            "net" => Ok(Devices::Only(DevKind::Net)),
            "self" => Ok(Devices::Only(DevKind::Loopback)),
            _ => Err(format!("-D: '{name}' is no kind of devices (there are: all, shm, net, self)")),
        }
    }
}

/// Location of a peer: `-P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLocation {
    /// In this process.
    Here,
    /// On this node.
    Intra,
    /// On another node.
    Inter,
}

impl PeerLocation {
    fn parse(name: &str) -> Result<PeerLocation, String> {
        match name.to_ascii_lowercase().as_str() {
            "self" => Ok(PeerLocation::Here),
            "intra" => Ok(PeerLocation::Intra),
            "inter" => Ok(PeerLocation::Inter),
            _ => Err(format!("-P: '{name}' is no place (there are: self, intra, inter)")),
        }
    }

    pub fn is_reached_by(self, kind: DevKind) -> bool {
        match self {
            PeerLocation::Here => kind == DevKind::Loopback,
            PeerLocation::Intra => kind != DevKind::Loopback,
            PeerLocation::Inter => kind == DevKind::Net,
        }
    }
}

fn memory(text: &str) -> Result<usize, String> {
    let (size, kind) = text.split_once(',').unwrap_or((text, "host"));
    match kind {
        "host" => parse_bytes(size).map_err(|why| format!("-m: {why}")),
        other => {
            Err(format!("-m: memory '{other}': this program was built without accelerators (there is: host)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Args, String> {
        Args::read(std::iter::once("ucx-info").chain(line.split_whitespace()))
            .map_err(|e| e.unwrap_or_else(|| "help".into()))
    }

    #[test]
    fn options_of_ucx_info_parse() {
        assert_eq!(read("-e").unwrap().features, None);
        assert_eq!(read("-e -u t").unwrap().features, Some(Features { tags: true, ..Features::default() }));
        assert_eq!(read("-epw -u artsmwe").unwrap().features, Some(Features::ALL));
        assert_eq!(read("-p -u r -D NET -n 1000 -N 8").unwrap().only, Some(Devices::Only(DevKind::Net)));
        assert_eq!(read("-m 64k,host -u r").unwrap().memory, Some(65536));
        assert!(read("-f").unwrap().wants_config() && read("-cfaC -F TLS").is_ok());
        assert!(read("-d -u t").is_ok(), "what changes nothing passes");
        for (place, kinds) in
            [("self", [true, false, false]), ("intra", [false, true, true]), ("inter", [false, false, true])]
        {
            let place = read(&format!("-e -P {place}")).unwrap().place.unwrap();
            assert_eq!(
                [DevKind::Loopback, DevKind::Shm, DevKind::Net].map(|kind| place.is_reached_by(kind)),
                kinds
            );
        }
    }

    #[test]
    fn errors_name_their_option() {
        for (line, want) in [
            ("", "say what to show: "),
            ("-y -t posix", "-t is for -d, which is not asked for"),
            ("-v -F TLS", "-F is for -c, which"),
            ("-v -P self", "-P is for -e, which"),
            ("-v -D net", "-D is for -p, -w, -e and -m, which"),
            ("-e -u q", "-u: feature 'q' is unknown (there are: a, r, t, s, m, with w, e)"),
            ("-e -u we", "-u 'we': at least one of a, r, t, s, m"),
            ("-e -u tx", "-u x: a handle of memory"),
            ("-e -u d", "-u d: this program was built without accelerators"),
            ("-p -D ib", "-D: 'ib' is no kind of devices (there are: all, shm, net, self)"),
            ("-e -P far", "-P: 'far' is no place (there are: self, intra, inter)"),
            ("-m 64k,cuda", "-m: memory 'cuda': this program was built without accelerators"),
            ("-m lots", "-m: 'lots' is not a size"),
            ("-e -n many", "'many' is not a count"),
            ("-e -A 127.0.0.1", "-A and -6: endpoints are made of the address of a worker here"),
            ("-e -6", "-A and -6: "),
            ("-q", "unexpected argument '-q' found (see ucx-info -h)"),
        ] {
            let text = read(line).unwrap_err();
            assert!(text.starts_with(want) && !text.contains('\n'), "{line}: {text}");
        }
    }

    #[test]
    fn help_lists_every_option() {
        use clap::CommandFactory as _;
        let mut command = Args::command();
        let text = command.render_help().to_string();
        for arg in command.get_arguments() {
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            let name = short.or(arg.get_long().map(|long| format!("--{long}"))).unwrap();
            let listed = text.lines().any(|l| l.trim_start().split([',', ' ']).next() == Some(&name));
            assert!(listed && !arg.is_hide_set(), "{name}\n{text}");
        }
    }
}
