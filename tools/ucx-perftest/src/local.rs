//! `--local`: starts the other sides as child processes, each pinned to a core. Children connect to their
//! parent, so no port has to be free, and die with it.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use tools_common::boot::{BootError, Connection, Listener};

use crate::cpu_list::CpuList;
use crate::fail::{Failure, TOOL};
use crate::group::{self, GroupConfig, Partner, Pins, ServerThread};
use crate::link::{CoreSharing, Link, Side};

/// A child process; killed when dropped, if it still runs after two seconds.
pub struct Peer(Child);

pub type Peers = Arc<Mutex<Vec<Peer>>>;

/// The cores of server and client: `-c`, or two allowed ones that are not threads of one core.
pub fn cores(asked: Option<&CpuList>) -> Result<(CpuList, CpuList), Failure> {
    if let Some(list) = asked {
        return Ok(list.halves());
    }
    let allowed = CpuList::allowed()?;
    let all = allowed.as_slice();
    let first = *all.first().ok_or_else(|| Failure::Unsupported("this process may run on no core".into()))?;
    let others = || all.iter().skip(1).copied();
    let second = others().find(|c| !ucs::sys::topo::same_core(first, *c)).or_else(|| others().next());
    Ok((CpuList::one(first), CpuList::one(second.unwrap_or(first))))
}

fn spawn(args: &[String]) -> Result<Child, Failure> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::Unsupported(format!("cannot find this program: {e}")))?;
    Command::new(program)
        .args(args)
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
    let pins = asked.cloned().map_or_else(CpuList::allowed, Ok)?;
    let listener = Listener::local(TOOL)?;
    let members = procs * threads;
    let cores =
        if pins.as_slice().len() >= members as usize { CoreSharing::Dedicated } else { CoreSharing::Shared };
    let host = "127.0.0.1".into();
    let port = listener.port();
    let (proc, pins_of, partner) = (procs - 1, pins.as_slice().to_vec(), Partner::Other);
    let group = GroupConfig { host, port, proc, procs, threads, pins: Pins::Group(pins_of), cores, partner };
    let peers = Arc::new(Mutex::new(Vec::new()));
    for proc in 0..procs - 1 {
        let args = [
            "--peer-of".into(),
            port.to_string(),
            "--proc".into(),
            format!("{proc}/{procs}"),
            "-T".into(),
            threads.to_string(),
            "-c".into(),
            pins.to_string(),
        ];
        let child = spawn(&args)?;
        peers.lock().unwrap_or_else(|e| e.into_inner()).push(Peer(child));
    }
    let watched = Arc::downgrade(&peers);
    let server = group::start_server(listener, members, move || {
        let Some(peers) = watched.upgrade() else { return Err(BootError::Closed) };
        let mut peers = peers.lock().unwrap_or_else(|e| e.into_inner());
        let ended = peers.iter_mut().any(|peer| matches!(peer.0.try_wait(), Ok(Some(_))));
        if ended { Err(BootError::Closed) } else { Ok(()) }
    })?;
    Ok((group, server, peers))
}

/// Starts the other side, and pins this one.
pub fn start(asked: Option<&CpuList>) -> Result<(Link, Peer), Failure> {
    let (server, client) = cores(asked)?;
    let listener = Listener::local(TOOL)?;
    let child = spawn(&["--peer-of".into(), listener.port().to_string(), "-c".into(), server.to_string()])?;
    let mut peer = Peer(child);
    // After the start of the child, which inherits the affinity of its parent.
    client.confine()?;
    let boot = listener.accept(|| match peer.0.try_wait() {
        Ok(Some(_)) => Err(BootError::Closed),
        _ => Ok(()),
    })?;
    Ok((Link::pair(Side::Client, boot), peer))
}

/// The group of a child process, which dies with its parent from now on.
pub fn join_group(port: u16, (proc, procs): (u32, u32), threads: u32, pins: &CpuList) -> GroupConfig {
    die_with_parent();
    let cores = if pins.as_slice().len() >= (procs * threads) as usize {
        CoreSharing::Dedicated
    } else {
        CoreSharing::Shared
    };
    let (host, pins, partner) = ("127.0.0.1".into(), Pins::Group(pins.as_slice().to_vec()), Partner::Other);
    GroupConfig { host, port, proc, procs, threads, pins, cores, partner }
}

/// A group of the threads of this process, each paired with itself.
pub fn loopback_group(threads: u32, asked: Option<&CpuList>) -> Result<(GroupConfig, ServerThread), Failure> {
    let pins = asked.cloned().map_or_else(CpuList::allowed, Ok)?;
    let listener = Listener::local(TOOL)?;
    let cores =
        if pins.as_slice().len() >= threads as usize { CoreSharing::Dedicated } else { CoreSharing::Shared };
    let (host, port, pins, partner) =
        ("127.0.0.1".into(), listener.port(), Pins::Group(pins.as_slice().to_vec()), Partner::Itself);
    let server = group::start_server(listener, threads, || Ok(()))?;
    Ok((GroupConfig { host, port, proc: 0, procs: 1, threads, pins, cores, partner }, server))
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
