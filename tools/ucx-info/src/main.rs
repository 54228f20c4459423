//! ucx-info: version, configuration, machine, transports and devices, and the protocol of each message size
//! with the reason. Options and layout are those of `ucx_info`. Writes nothing but the cost file of
//! `--calibrate`.

mod calibrate;
mod cli;
mod config;
mod devices;
mod doctor;
mod protocols;
mod sizes;
mod system;
mod version;
mod workers;

use std::process::ExitCode;

use cli::{Args, Devices, Features};
use tools_common::settings;

const USAGE: u8 = 2;
const CHECK_FAILED: u8 = 1;

fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(text)) => return refuse(&text, USAGE),
    };
    match run(&args) {
        Ok(status) => status,
        Err(text) => refuse(&text, USAGE),
    }
}

fn refuse(text: &str, status: u8) -> ExitCode {
    ucs::stderr_line!("ucx-info: {text}");
    ExitCode::from(status)
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
        let system = system::query();
        show("system", system.to_string(), json(&system));
    }
    if args.topology {
        let topology = system::topology();
        show("topology", topology.to_string(), json(&topology));
    }
    if args.copies {
        let copies = system::copies();
        show("copies", copies.to_string(), json(&copies));
    }
    if args.types {
        let all = sizes::all();
        show("types", sizes::text(&all), json(&all));
    }
    if args.doctor {
        let all = doctor::run_checks(settings::load().map_err(|e| e.to_string()));
        show("doctor", doctor::text(&all), json(&all));
        if doctor::has_failures(&all) {
            status = ExitCode::from(CHECK_FAILED);
        }
    }
    if args.wants_config() || args.devices || args.wants_ucp() || args.calibrate {
        let source = settings::load().map_err(|e| e.to_string())?;
        if args.wants_config() {
            let how = match (args.plain, args.comment) {
                (true, _) => config::Style::Plain,
                (_, true) => config::Style::Commented,
                _ => config::Style::Full,
            };
            let tables = config::tables(&source, args.filter.as_deref());
            show("config", config::text(&tables, how), json(&tables));
        }
        if args.devices {
            let found = devices::find(&source, args.transport.as_deref())?;
            show("devices", devices::text(&found), json(&found));
        }
        let ucp_source = match args.only {
            Some(Devices::Only(kind)) => workers::restrict_to(&source, kind)?,
            _ => source.clone(),
        };
        if args.context {
            let chosen = workers::context(&ucp_source)?;
            show("context", chosen.to_string(), json(&chosen));
        }
        if args.worker {
            let worker = workers::worker(&ucp_source)?;
            show("worker", worker.to_string(), json(&worker));
        }
        if let Some(size) = args.memory {
            let allocated = workers::memory(&ucp_source, size)?;
            show("memory", allocated.to_string(), json(&allocated));
        }
        if args.calibrate {
            let measured = calibrate::measure(&source)?;
            show("calibration", measured.to_string(), json(&measured));
        }
        if args.endpoint {
            let found = protocols::find(&ucp_source, args.features.unwrap_or(Features::ALL), args.place)?;
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
