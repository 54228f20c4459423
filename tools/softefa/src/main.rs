//! softefa: runs a program with a software EFA device, lists such devices, and checks this machine. The
//! device itself is `libsoftefa.so`, beside this program.

mod cleanup;
mod doctor;
mod loader;
mod pci;
mod program;
mod run;
mod sysfs_tree;

use run::RunError;

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;
use tools_common::out;
use ucs::config::{ConfigValue as _, Source, Table as _};
use uct::efa::dev::Dev;
use uct::efa::dev::soft;

/// A software EFA device for programs compiled against libibverbs and libefa.
#[derive(Parser)]
#[command(name = "softefa", version)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Runs a program that finds the device
    Run {
        #[command(flatten)]
        device: DeviceArgs,

        /// The program and its arguments
        #[arg(required = true, last = true, value_name = "PROGRAM")]
        command: Vec<OsString>,
    },
    /// Lists the devices a program would find
    List {
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Says what is missing on this machine, for a program, or on the way to a host, and how to solve it
    Doctor {
        #[command(flatten)]
        path: PathArgs,

        /// Answers the doctor of other hosts, until it is ended
        #[arg(long, conflicts_with = "target")]
        listen: bool,

        /// A program that is to find the device; or a host, with or without :PORT, where `softefa doctor
        /// --listen` runs
        #[arg(value_name = "PROGRAM|HOST")]
        target: Option<OsString>,
    },
}

/// Device and network options. Each sets the `SOFTEFA_*` key of its name.
#[derive(Args)]
struct DeviceArgs {
    /// GID: fe80::... or a hexadecimal interface id [default: one that no other process has]
    #[arg(long)]
    gid: Option<String>,

    /// Longest message, bytes
    #[arg(long)]
    mtu: Option<String>,

    /// Generation: 1 has part id 0xefa0, 4 has 0xefa3
    #[arg(long = "gen", value_name = "1..4", value_parser = clap::value_parser!(u8).range(1..=4))]
    generation: Option<u8>,

    /// Whether the device has RDMA: y, n, or auto, which checks whether processes may copy each other's
    /// memory
    #[arg(long, value_name = "y|n|auto")]
    rdma: Option<String>,

    /// Number of devices
    #[arg(long)]
    devices: Option<String>,

    /// Seed of all random numbers
    #[arg(long)]
    seed: Option<String>,

    /// Probability that a packet is overtaken
    #[arg(long, value_name = "P")]
    reorder: Option<String>,

    /// Polls that every packet is delayed
    #[arg(long, value_name = "POLLS")]
    delay: Option<String>,

    /// Probability that a send finds the receiver not ready
    #[arg(long, value_name = "P")]
    rnr: Option<String>,

    /// Probability that a request fails
    #[arg(long, value_name = "P")]
    fault: Option<String>,

    /// Takes NIC number NIC down after so many packets; several with commas
    #[arg(long, value_name = "NIC:PACKETS")]
    down: Option<String>,

    /// Ends requests on registered memory that the program unmapped with a status, by a handler for SIGSEGV
    /// and SIGBUS: y (default) or n
    #[arg(long, value_name = "y|n")]
    guard_memory: Option<String>,

    /// Ends the keys of registered memory that the program unmapped: y or n (default)
    #[arg(long, value_name = "y|n")]
    watch_memory: Option<String>,

    /// Reaches other hosts over UDP, from this interface, address or network (such as 10.0.0.0/8)
    #[arg(long, value_name = "IFACE|CIDR")]
    net: Option<String>,

    /// Which peers are reached over UDP: n (none), y (those of other hosts), all
    #[arg(long, value_name = "n|y|all")]
    udp: Option<String>,

    /// IPv6 hosts of the job that are in different /96 networks: addresses and names, or a file with one in
    /// each line
    #[arg(long, value_name = "HOST,...|@FILE")]
    udp_hosts: Option<String>,

    /// UDP ports to use
    #[arg(long, value_name = "FIRST-LAST")]
    udp_ports: Option<String>,

    /// File with the secret of the job, which keeps all others out and encrypts what is sent
    #[arg(long, value_name = "FILE")]
    secret_file: Option<String>,

    /// Takes the secret of the job from the launcher that started this process (mpirun, srun --mpi=pmix)
    #[arg(long, value_name = "pmix", conflicts_with = "secret_file")]
    job_secret: Option<String>,

    /// Lets anybody who can send datagrams here read and write the memory that programs register
    #[arg(long)]
    insecure: bool,

    /// Writes the packets to this file (pcapng); `%p` is the process id, appended if there is no `%p`
    #[arg(long, value_name = "FILE")]
    pcap: Option<String>,

    /// Writes the datagrams over UDP to this file (pcapng), in clear where they are sealed; `%p` as above
    #[arg(long, value_name = "FILE")]
    udp_pcap: Option<String>,
}

/// Options of the way to another host; those of `run` of the same name.
#[derive(Args)]
struct PathArgs {
    /// Interface, IPv4 address or network to use [default: the one that leads there]
    #[arg(long, value_name = "IFACE|CIDR")]
    net: Option<String>,

    /// UDP ports to try
    #[arg(long, value_name = "FIRST-LAST")]
    udp_ports: Option<String>,

    /// File with the secret of the job
    #[arg(long, value_name = "FILE")]
    secret_file: Option<String>,
}

impl PathArgs {
    /// The environment with these options.
    fn source(&self) -> Result<Source, String> {
        let mut source = Source::from_env().map_err(|e| e.to_string())?;
        let all = [
            ("SOFTEFA_NET", &self.net),
            ("SOFTEFA_UDP_PORTS", &self.udp_ports),
            ("SOFTEFA_SECRET_FILE", &self.secret_file),
        ];
        for (key, value) in all {
            if let Some(value) = value {
                source.set(key, value);
            }
        }
        Ok(source)
    }
}

impl DeviceArgs {
    fn keys(&self) -> Vec<(&'static str, String)> {
        let generation = self.generation.map(|n| format!("efa{}", n - 1));
        let insecure = self.insecure.then(|| "y".to_string());
        let all = [
            ("SOFTEFA_GID", &self.gid),
            ("SOFTEFA_MTU", &self.mtu),
            ("SOFTEFA_GEN", &generation),
            ("SOFTEFA_RDMA", &self.rdma),
            ("SOFTEFA_DEVICES", &self.devices),
            ("SOFTEFA_SEED", &self.seed),
            ("SOFTEFA_REORDER", &self.reorder),
            ("SOFTEFA_DELAY", &self.delay),
            ("SOFTEFA_RNR", &self.rnr),
            ("SOFTEFA_FAULT", &self.fault),
            ("SOFTEFA_DOWN", &self.down),
            ("SOFTEFA_WATCH_MEMORY", &self.watch_memory),
            ("SOFTEFA_GUARD_MEMORY", &self.guard_memory),
            ("SOFTEFA_PCAP", &self.pcap),
            ("SOFTEFA_UDP_PCAP", &self.udp_pcap),
            ("SOFTEFA_NET", &self.net),
            ("SOFTEFA_UDP", &self.udp),
            ("SOFTEFA_UDP_HOSTS", &self.udp_hosts),
            ("SOFTEFA_UDP_PORTS", &self.udp_ports),
            ("SOFTEFA_SECRET_FILE", &self.secret_file),
            ("SOFTEFA_JOB_SECRET", &self.job_secret),
            ("SOFTEFA_INSECURE", &insecure),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))).collect()
    }

    /// Names of the devices, after a check of options and environment.
    fn check(&self) -> Result<(Source, Vec<String>), String> {
        let ours = std::env::vars_os().filter(|(k, _)| k.to_str().is_some_and(|k| k.starts_with("SOFTEFA_")));
        let mut source = Source::from_vars(ours).map_err(|e| e.to_string())?;
        for (key, value) in self.keys() {
            source.set(key, &value);
        }
        for warning in unknown_names(&source) {
            ucs::stderr_line!("softefa: {warning}");
        }
        let found = soft::list(&source).map_err(|e| e.to_string())?;
        Ok((source, found.into_iter().map(|d| d.name).collect()))
    }
}

/// Warnings of `SOFTEFA_` names that no table has, unless `UCX_WARN_UNUSED_ENV_VARS=n`. Other names are the
/// program's.
fn unknown_names(source: &Source) -> Vec<String> {
    let warn = std::env::var("UCX_WARN_UNUSED_ENV_VARS").ok().and_then(|value| bool::parse(&value));
    // Without the tables of other transports, which would link what they need.
    let unknown = source.unknown_keys(&[&soft::SoftConfig::DESC]);
    let of_device = |key: &&ucs::config::UnknownKey| key.name.starts_with("SOFTEFA_") && warn != Some(false);
    unknown.iter().filter(of_device).map(ToString::to_string).collect()
}

fn list(device: &DeviceArgs) -> Result<(), String> {
    let (source, names) = device.check()?;
    for name in names {
        let dev = soft::open(&source, &name).map_err(|e| e.to_string())?;
        let (a, gid) = (dev.attr(), dev.gid());
        let can = |has: bool, what: &'static str| if has { what } else { "" };
        out::line(format!(
            "{name}: part {:#x}, MTU {} B, inline {} B, {} queue pairs{}{}{}{}; GID {gid} (of this process)",
            a.part_id,
            a.mtu,
            a.max_inline,
            a.max_qp,
            can(a.rnr_retry, ", RNR retry"),
            can(a.rdma_read, ", RDMA read"),
            can(a.rdma_write, ", RDMA write"),
            can(a.unsolicited_write_recv, ", unsolicited write receive"),
        ));
    }
    Ok(())
}

fn fail(RunError { code, text }: RunError) -> ExitCode {
    ucs::stderr_line!("softefa: {text}");
    ExitCode::from(code)
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Subcommands::Run { device, command } => {
            let ran = device
                .check()
                .map_err(RunError::from)
                .and_then(|(_, names)| run::run(&device.keys(), &names, &command));
            match ran {
                Ok(never) => match never {},
                Err(refused) => fail(refused),
            }
        }
        Subcommands::List { device } => list(&device).map_or_else(|e| fail(e.into()), |()| ExitCode::SUCCESS),
        Subcommands::Doctor { path, listen, target } => match path.source() {
            Err(e) => fail(e.into()),
            Ok(source) if listen => match doctor::listen(&source) {
                Ok(never) => match never {},
                Err(e) => fail(e.into()),
            },
            Ok(source) => doctor::doctor(target.as_deref(), &source),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_name_is_a_warning() {
        let source = Source::empty().with("SOFTEFA_REORDR", "0.1").with("SOFTEFA_GEN", "efa1");
        let near = "unknown configuration key SOFTEFA_REORDR (override): did you mean SOFTEFA_REORDER?";
        assert_eq!(unknown_names(&source), [near]);
    }
}
