//! `--local`: starts the other sides as child processes, each pinned to a core. Children connect to their
//! parent, so no port has to be free, and die with it.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use tools_common::boot::{BootError, Connection, Listener};

use crate::cpu_list::{CpuList, cores_to_choose_from};
use crate::fail::{Failure, TOOL};
use crate::group::{self, GroupConfig, Partner, Pins, ServerThread};
use crate::link::{CoreSharing, Link, Side};

/// A child process; killed when dropped, if it still runs after two seconds.
pub struct Peer(Child);

pub type Peers = Arc<Mutex<Vec<Peer>>>;

/// The cores of server and client: `-c`, or two allowed ones that are not threads of one core. `None`: the
/// system lets this process choose none.
pub fn cores(asked: Option<&CpuList>) -> Option<(CpuList, CpuList)> {
    if let Some(list) = asked {
        return Some(list.halves());
    }
    let allowed = cores_to_choose_from()?;
    let all = allowed.as_slice();
    let first = *all.first()?;
    let others = || all.iter().skip(1).copied();
    let second = others().find(|c| !ucs::sys::topo::same_core(first, *c)).or_else(|| others().next());
    Some((CpuList::one(first), CpuList::one(second.unwrap_or(first))))
}

fn spawn(args: &[String]) -> Result<Child, Failure> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::Unsupported(format!("cannot find this program: {e}")))?;
    Command::new(program)
        .args(args)
        // This process warns of unknown names for all.
        .env("UCX_WARN_UNUSED_ENV_VARS", "n")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| Failure::Unsupported(format!("cannot start the other side: {e}")))
}

/// Starts the server and the other processes of a group. This process is the last.
pub fn start_group(
    procs: u32,
    threads: u32,
    asked: Option<&CpuList>,
) -> Result<(GroupConfig, ServerThread, Peers), Failure> {
    let pins = asked.cloned().or_else(cores_to_choose_from);
    let listener = Arc::new(Listener::local(TOOL)?);
    let members = procs * threads;
    let host = "127.0.0.1".into();
    let port = listener.port();
    let (proc, partner) = (procs - 1, Partner::Other);
    let (cores, group_pins) = (sharing(pins.as_ref(), members), pins_of(pins.as_ref()));
    let group = GroupConfig { host, port, proc, procs, threads, pins: group_pins, cores, partner };
    let peers = Arc::new(Mutex::new(Vec::new()));
    for proc in 0..procs - 1 {
        let mut args = vec![
            "--peer-of".into(),
            port.to_string(),
            "--proc".into(),
            format!("{proc}/{procs}"),
            "-T".into(),
            threads.to_string(),
        ];
        args.extend(pins.iter().flat_map(|pins| ["-c".into(), pins.to_string()]));
        let child = spawn(&args)?;
        peers.lock().unwrap_or_else(|e| e.into_inner()).push(Peer(child));
    }
    let watched = Arc::downgrade(&peers);
    let tried = listener.clone();
    let server = group::start_server(listener, members, move || {
        let Some(peers) = watched.upgrade() else { return Err(BootError::Closed) };
        let mut peers = peers.lock().unwrap_or_else(|e| e.into_inner());
        let ended = peers.iter_mut().any(|peer| matches!(peer.0.try_wait(), Ok(Some(_))));
        if ended { Err(tried.cause_of_absence()) } else { Ok(()) }
    })?;
    Ok((group, server, peers))
}

/// Starts the other side, and pins this one.
pub fn start(asked: Option<&CpuList>) -> Result<(Link, Peer), Failure> {
    let cores = cores(asked);
    let listener = Listener::local(TOOL)?;
    let mut args = vec!["--peer-of".into(), listener.port().to_string()];
    args.extend(cores.iter().flat_map(|(server, _)| ["-c".into(), server.to_string()]));
    let mut peer = Peer(spawn(&args)?);
    // After the start of the child, which inherits the affinity of its parent.
    if let Some((_, client)) = cores {
        client.confine().map_err(|e| Failure::of_given_cores(&e))?;
    }
    let boot = listener.accept(|| match peer.0.try_wait() {
        Ok(Some(_)) => Err(listener.cause_of_absence()),
        _ => Ok(()),
    })?;
    Ok((Link::pair(Side::Client, boot), peer))
}

/// The group of a child process, which dies with its parent from now on.
pub fn join_group(port: u16, (proc, procs): (u32, u32), threads: u32, pins: Option<&CpuList>) -> GroupConfig {
    die_with_parent();
    let (cores, pins) = (sharing(pins, procs * threads), pins_of(pins));
    let (host, partner) = ("127.0.0.1".into(), Partner::Other);
    GroupConfig { host, port, proc, procs, threads, pins, cores, partner }
}

/// A group of the threads of this process, each paired with itself.
pub fn loopback_group(threads: u32, asked: Option<&CpuList>) -> Result<(GroupConfig, ServerThread), Failure> {
    let pins = asked.cloned().or_else(cores_to_choose_from);
    let listener = Arc::new(Listener::local(TOOL)?);
    let (cores, pins) = (sharing(pins.as_ref(), threads), pins_of(pins.as_ref()));
    let (host, port, partner) = ("127.0.0.1".into(), listener.port(), Partner::Itself);
    let server = group::start_server(listener, threads, || Ok(()))?;
    Ok((GroupConfig { host, port, proc: 0, procs: 1, threads, pins, cores, partner }, server))
}

fn pins_of(cores: Option<&CpuList>) -> Pins {
    cores.map_or(Pins::None, |cores| Pins::Group(cores.as_slice().to_vec()))
}

/// Whether `members` have a core each of these, or of those that this process may run on.
fn sharing(cores: Option<&CpuList>, members: u32) -> CoreSharing {
    match cores {
        Some(cores) => group::compare_cores(cores.as_slice().len(), members),
        None => group::core_sharing(members),
    }
}

fn die_with_parent() {
    // Without it (old kernels) this process ends when the connection does.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// The child's end of [`start`].
pub fn join(port: u16) -> Result<Link, Failure> {
    die_with_parent();
    Ok(Link::pair(Side::Server, Connection::connect(TOOL, "127.0.0.1", port)?))
}

impl Drop for Peer {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Nothing is lost: the measurements are over.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
