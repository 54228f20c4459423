//! ucx-info: what this build is, how it is configured, which transports and devices it finds, and which protocol each
//! message size takes and why. Letters and layout are those of `ucx_info`. Measures nothing, changes nothing.

mod config;
mod devices;
mod protocols;
mod version;

use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use tools_common::settings;

/// Shows version, configuration, devices and protocol choice.
#[derive(Parser)]
#[command(name = "ucx-info", disable_version_flag = true)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["version", "config", "devices", "endpoint"])))]
struct Args {
    /// Version
    #[arg(short)]
    version: bool,

    /// Configuration: every variable with its value, origin, default, unit and meaning
    #[arg(short)]
    config: bool,

    /// Devices and transports, with what each can do
    #[arg(short)]
    devices: bool,

    /// Protocol by size between two workers, and why
    #[arg(short)]
    endpoint: bool,

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
        Ok(()) => ExitCode::SUCCESS,
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
        return "say what to show: -v, -c, -d or -e (see ucx-info -h)".into();
    }
    let line = text.lines().next().unwrap_or_default();
    format!("{} (see ucx-info -h)", line.strip_prefix("error: ").unwrap_or(line))
}

fn run(args: &Args) -> Result<(), String> {
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
    if args.config || args.devices || args.endpoint {
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
        if args.endpoint {
            let found = protocols::find(&source)?;
            show("endpoints", protocols::text(&found), json(&found));
        }
    }
    if args.json {
        tools_common::out::line(serde_json::Value::Object(all).to_string());
    }
    Ok(())
}

fn json<T: serde::Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).expect("what is shown is plain data")
}
