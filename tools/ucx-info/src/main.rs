//! ucx-info: what this build is, how it is configured, which transports and devices it finds, and which protocol each
//! message size takes and why; what the machine is like, and what it lacks. Letters and layout are those of `ucx_info`.
//! Changes nothing but, with `--calibrate`, the file of measured costs; that and `-s` measure, for some tenths of a second at most.

mod calibrate;
mod config;
mod devices;
mod doctor;
mod protocols;
mod sizes;
mod system;
mod version;
mod workers;

use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use tools_common::settings;

/// What can be asked for.
const WHAT: [&str; 11] = [
    "version",
    "build",
    "system",
    "types",
    "config",
    "devices",
    "context",
    "worker",
    "endpoint",
    "doctor",
    "calibrate",
];

/// Shows version, machine, configuration, devices and protocol choice; says what is missing or slow.
#[derive(Parser)]
#[command(name = "ucx-info", disable_version_flag = true)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(WHAT)))]
struct Args {
    /// Version
    #[arg(short)]
    version: bool,

    /// How it was built
    #[arg(short)]
    build: bool,

    /// The machine, and how fast it copies memory
    #[arg(short)]
    system: bool,

    /// Sizes of types and of packet headers
    #[arg(short = 'y')]
    types: bool,

    /// Configuration: every variable with its value, origin, default, unit and meaning
    #[arg(short)]
    config: bool,

    /// Devices and transports, with what each can do
    #[arg(short)]
    devices: bool,

    /// Transports that a context chooses
    #[arg(short = 'p')]
    context: bool,

    /// A worker: its interfaces and its address
    #[arg(short)]
    worker: bool,

    /// Protocol by size between two workers, and why
    #[arg(short)]
    endpoint: bool,

    /// What is missing or slow on this machine, and what to do; exit status 1 if something does not work
    #[arg(long)]
    doctor: bool,

    /// Measure what copies, kernel and devices cost here, and keep it for contexts with UCX_CALIBRATE=y
    #[arg(long)]
    calibrate: bool,

    /// With -c: only NAME=value lines
    #[arg(long, requires = "config")]
    plain: bool,

    /// With -c: variables that have their default as comments
    #[arg(short = 'C', requires = "config")]
    comment: bool,

    /// Fully decorated output (it always is; for habit's sake)
    #[arg(short = 'f')]
    full: bool,

    /// With -d: only this transport
    #[arg(short, value_name = "NAME", requires = "devices")]
    transport: Option<String>,

    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Exit status for wrong arguments or configuration.
const USAGE: u8 = 2;
/// Exit status of `--doctor` when something does not work.
const ILL: u8 = 1;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) if !e.use_stderr() => {
            tools_common::out::line(e.render().to_string().trim_end());
            return ExitCode::SUCCESS;
        }
        Err(e) => return refuse(&first_line(&e), USAGE),
    };
    match run(&args) {
        Ok(status) => status,
        Err(text) => refuse(&text, USAGE),
    }
}

fn refuse(text: &str, status: u8) -> ExitCode {
    eprintln!("ucx-info: {text}");
    ExitCode::from(status)
}

fn first_line(e: &clap::Error) -> String {
    let text = e.render().to_string();
    if e.kind() == clap::error::ErrorKind::MissingRequiredArgument {
        return "say what to show: -v, -b, -s, -y, -c, -d, -p, -w, -e, --doctor or --calibrate (see ucx-info -h)".into();
    }
    let line = text.lines().next().unwrap_or_default();
    format!("{} (see ucx-info -h)", line.strip_prefix("error: ").unwrap_or(line))
}

fn run(args: &Args) -> Result<ExitCode, String> {
    let mut status = ExitCode::SUCCESS;
    let mut all = serde_json::Map::new();
    let mut show = |name: &str, text: String, json: serde_json::Value| {
        if args.json {
            all.insert(name.into(), json);
        } else {
            tools_common::out::line(text.trim_end());
        }
    };
    if args.version {
        let v = version::Version::new();
        show("version", v.to_string(), json(&v));
    }
    if args.build {
        let b = version::Build::new();
        show("build", b.to_string(), json(&b));
    }
    if args.system {
        let system = system::look();
        show("system", system.to_string(), json(&system));
    }
    if args.types {
        let all = sizes::all();
        show("types", sizes::text(&all), json(&all));
    }
    if args.doctor {
        let all = doctor::examine(settings::load().map_err(|e| e.to_string()));
        show("doctor", doctor::text(&all), json(&all));
        if doctor::is_ill(&all) {
            status = ExitCode::from(ILL);
        }
    }
    if args.config || args.devices || args.context || args.worker || args.endpoint || args.calibrate {
        let source = settings::load().map_err(|e| e.to_string())?;
        if args.config {
            let how = match (args.plain, args.comment) {
                (true, _) => config::How::Plain,
                (_, true) => config::How::Commented,
                _ => config::How::Full,
            };
            let tables = config::tables(&source);
            show("config", config::text(&tables, how), json(&tables));
        }
        if args.devices {
            let found = devices::find(&source, args.transport.as_deref())?;
            show("devices", devices::text(&found), json(&found));
        }
        if args.context {
            let chosen = workers::context(&source)?;
            show("context", chosen.to_string(), json(&chosen));
        }
        if args.worker {
            let worker = workers::worker(&source)?;
            show("worker", worker.to_string(), json(&worker));
        }
        if args.calibrate {
            let measured = calibrate::measure(&source)?;
            show("calibration", measured.to_string(), json(&measured));
        }
        if args.endpoint {
            let found = protocols::find(&source)?;
            show("endpoints", protocols::text(&found), json(&found));
        }
    }
    if args.json {
        tools_common::out::line(serde_json::Value::Object(all).to_string());
    }
    Ok(status)
}

fn json<T: serde::Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).expect("what is shown is plain data")
}
