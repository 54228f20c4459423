//! efa-dump: decodes captures of the software EFA device, checks them for violations of the protocol,
//! compares two, and generates a Wireshark dissector. Exit status: 0 clean, 1 violations or differences, 2
//! error.

mod check;
mod compare;
mod file;
mod flow;
mod hex;
mod json;
mod line;
mod lua;
mod record;
mod udp;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use file::FileError;
use record::{Names, Record, mark_headerless};

/// Decodes captures of EFA RDM v4 packets (docs/efa-dump.md).
#[derive(Parser)]
#[command(name = "efa-dump", version)]
#[command(group(ArgGroup::new("what").required(true).args(["files", "compare", "hex", "dissector"])))]
struct Args {
    /// Captures (pcapng, made with SOFTEFA_PCAP; with --udp of a network, by tcpdump); the packets of several
    /// are put in order of time
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Every field of each packet, with its offset and meaning
    #[arg(short)]
    verbose: bool,

    /// Messages instead of packets: all packets of one exchange together
    #[arg(long, conflicts_with_all = ["verbose", "compare", "hex", "dissector"])]
    flow: bool,

    /// One JSON object per line
    #[arg(long, conflicts_with_all = ["verbose", "flow", "compare", "dissector"])]
    json: bool,

    /// Only packets that violate the protocol
    #[arg(long, conflicts_with_all = ["flow", "compare", "hex", "dissector"])]
    bad: bool,

    /// Datagrams of the UDP link instead of packets, from captures of networks (tcpdump -w FILE udp) or of a
    /// device (SOFTEFA_UDP_PCAP)
    #[arg(long, conflicts_with_all = ["verbose", "flow", "json", "bad", "compare", "hex", "dissector"])]
    udp: bool,

    /// Only datagrams of this connection, by the number that either side gives it
    #[arg(long, requires = "udp", value_name = "NUMBER", value_parser = udp::number)]
    connection: Option<u32>,

    /// Only what concerns this segment, sent under that connection: each time it was sent, and its
    /// acknowledgement
    #[arg(long, requires = "connection", value_name = "NUMBER", value_parser = udp::number)]
    segment: Option<u32>,

    /// How two captures differ, times and ids apart
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    compare: Option<Vec<PathBuf>>,

    /// Decodes one packet given as hexadecimal digits, or on standard input if none are given
    #[arg(long, num_args = 0.., value_name = "DIGITS")]
    hex: Option<Vec<String>>,

    /// Prints a Wireshark dissector (Lua)
    #[arg(long)]
    dissector: bool,
}

const FOUND: u8 = 1;
const USAGE: u8 = 2;

enum Verdict {
    Clean,
    Found,
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) if !e.use_stderr() => {
            tools_common::out::line(e.render().to_string().trim_end());
            return ExitCode::SUCCESS;
        }
        Err(e) => return refuse(&first_line(&e)),
    };
    match run(&args) {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Found) => ExitCode::from(FOUND),
        Err(text) => refuse(&text),
    }
}

fn refuse(text: &str) -> ExitCode {
    ucs::stderr_line!("efa-dump: {text}");
    ExitCode::from(USAGE)
}

fn first_line(e: &clap::Error) -> String {
    let text = e.render().to_string();
    if e.kind() == clap::error::ErrorKind::MissingRequiredArgument {
        return "say what to decode: a file, --compare A B, --hex or --dissector (see efa-dump --help)"
            .into();
    }
    let line = text.lines().next().unwrap_or_default();
    format!("{} (see efa-dump --help)", line.strip_prefix("error: ").unwrap_or(line))
}

fn run(args: &Args) -> Result<Verdict, String> {
    if args.dissector {
        tools_common::out::line(lua::dissector().trim_end());
        return Ok(Verdict::Clean);
    }
    if let Some(digits) = &args.hex {
        return decode_digits(digits, args);
    }
    if let Some([a, b]) = args.compare.as_deref() {
        let (a, b) = (load(std::slice::from_ref(a))?, load(std::slice::from_ref(b))?);
        return Ok(if compare::print(&a, &b) { Verdict::Clean } else { Verdict::Found });
    }
    if args.udp {
        let is_clean = udp::print(&args.files, args.connection, args.segment)?;
        return Ok(if is_clean { Verdict::Clean } else { Verdict::Found });
    }
    let records = load(&args.files)?;
    let names = Names::of(&records);
    let report = check::check(&records);
    if args.json {
        json::print(&records, &report, args.bad);
    } else if args.flow {
        flow::print(&records, &names, &report);
    } else {
        let detail = if args.verbose { line::Detail::Fields } else { line::Detail::Line };
        let filter = if args.bad { line::Filter::Bad } else { line::Filter::All };
        line::print(&records, &names, &report, detail, filter);
    }
    Ok(if report.is_clean() { Verdict::Clean } else { Verdict::Found })
}

/// Says that a file ends early.
fn tell_of_cut(path: &Path, why: &str) {
    ucs::stderr_line!("efa-dump: {}: {why}; showing what is before it", path.display());
}

/// Reads files and sorts their packets by time.
fn load(paths: &[PathBuf]) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for (nth, path) in paths.iter().enumerate() {
        let capture = file::read(path, nth).map_err(|e: FileError| e.to_string())?;
        if let Some(why) = capture.truncated {
            tell_of_cut(path, &why);
        }
        records.extend(capture.records);
    }
    records.sort_by_key(|r| r.time);
    mark_headerless(&mut records);
    Ok(records)
}

fn decode_digits(digits: &[String], args: &Args) -> Result<Verdict, String> {
    let text = if digits.is_empty() {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|e| format!("standard input: {e}"))?;
        text
    } else {
        digits.join(" ")
    };
    let packet = hex::parse(&text)?;
    let rejected = ucp::wire::parse(&packet).is_err();
    if args.json {
        tools_common::out::line(json::packet(&packet).to_string());
    } else {
        tools_common::out::line(format!("{:#}", ucp::wire::Print(&packet)));
    }
    Ok(if rejected { Verdict::Found } else { Verdict::Clean })
}
