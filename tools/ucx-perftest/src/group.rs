//! Groups: several processes with several threads each, all measuring at once. Each thread is a member with a
//! connection to the group's server and an interface or worker of its own; loops share nothing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tools_common::boot::{BootError, GatherServer, Listener, Member};
use ucs::config::Source;
use ucs::sys::{CpuSet, cpu};

use crate::cpu_list::{AffinityGuard, CpuList};
use crate::fail::{Failure, TOOL};
use crate::link::{CoreSharing, Link};
use crate::report::{Report, TestResult};
use crate::session;
use crate::spec::Spec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partner {
    /// A member of the other half.
    Other,
    /// Itself: `-l`.
    Itself,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pins {
    None,
    /// For all members of the group.
    Group(Vec<usize>),
    /// For the members of this process.
    Process(Vec<usize>),
}

/// Size of a group, and this process's part of it.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    pub host: String,
    pub port: u16,
    pub proc: u32,
    pub procs: u32,
    pub threads: u32,
    pub pins: Pins,
    pub cores: CoreSharing,
    pub partner: Partner,
}

impl GroupConfig {
    pub fn members(&self) -> u32 {
        self.procs * self.threads
    }

    /// The core of a member. Where neighbours share one, the two members of a pair do not.
    fn pin(&self, rank: u32) -> Option<usize> {
        let (pins, rank, members) = match &self.pins {
            Pins::None => return None,
            Pins::Group(pins) => (pins, rank, self.members()),
            Pins::Process(pins) => (pins, rank - self.proc * self.threads, self.threads),
        };
        let (rank, members) = (rank as usize, members as usize);
        let at = if pins.len() >= members { rank } else { rank * pins.len() / members };
        pins.get(at).copied()
    }
}

/// Whether `members` on this host have a core each.
pub fn core_sharing(members: u32) -> CoreSharing {
    CpuSet::allowed().map_or(CoreSharing::Shared, |all| compare_cores(all.len(), members))
}

pub fn compare_cores(cores: usize, members: u32) -> CoreSharing {
    if cores >= members as usize { CoreSharing::Dedicated } else { CoreSharing::Shared }
}

/// Whether all members on this host have a core each: `threads` in each process on these cores.
pub fn core_sharing_of(procs: &[CpuList], threads: u32) -> CoreSharing {
    let mut all: Vec<usize> = procs.iter().flat_map(CpuList::as_slice).copied().collect();
    all.sort_unstable();
    all.dedup();
    if procs.iter().any(|one| compare_cores(one.as_slice().len(), threads) == CoreSharing::Shared) {
        return CoreSharing::Shared;
    }
    compare_cores(all.len(), (procs.len() as u32).saturating_mul(threads))
}

/// Longest time in which a server that has closed its connections ends.
const SERVER_END: Duration = Duration::from_secs(1);

#[must_use = "a process that ends takes its server along, before others have heard the last of it"]
pub struct ServerThread(thread::JoinHandle<Result<(), BootError>>);

/// Starts the server of a group. It ends when all members have left.
pub fn start_server(
    listener: Arc<Listener>,
    members: u32,
    keep_waiting: impl FnMut() -> Result<(), BootError> + Send + 'static,
) -> Result<ServerThread, Failure> {
    let work = move || GatherServer::new(listener, members).serve(keep_waiting);
    let started = thread::Builder::new().name("server".into()).spawn(work);
    started.map(ServerThread).map_err(|e| Failure::Unsupported(format!("cannot start a thread: {e}")))
}

impl ServerThread {
    /// Waits until the server has ended, if `ended` says that the members of this process have done their
    /// work. Of a member that lost its connection the server knows the cause, if it has ended.
    pub fn finish(self, ended: Result<(), Failure>) -> Result<(), Failure> {
        let until = Instant::now() + SERVER_END;
        let is_lost = ended.as_ref().is_err_and(Failure::is_lost_connection);
        while is_lost && !self.0.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // After another failure it may wait for members that never come.
        if ended.is_err() && !(is_lost && self.0.is_finished()) {
            return ended;
        }
        // A panic has been reported by the thread.
        match self.0.join() {
            Ok(Err(cause @ BootError::PeerAborted(_))) if is_lost => Err(Failure::Connection(cause)),
            _ => ended,
        }
    }
}

/// Runs the members of this process; the last prints by `report`. A member with a `plan` shares it.
pub fn run(
    group: &GroupConfig,
    plan: Option<&[Spec]>,
    source: &Source,
    report: &mut Report,
    each: impl FnMut(TestResult),
) -> Result<(), Failure> {
    // The last member runs on this thread and changes its affinity.
    let _back = AffinityGuard::save();
    // All connect before any begins: if one cannot, the group ends instead of waiting for it.
    let join =
        |t| Member::join(TOOL, &group.host, group.port, group.proc * group.threads + t, group.members());
    let mut members = (0..group.threads).map(join).collect::<Result<Vec<Member>, _>>()?;
    let last = members.pop().ok_or_else(|| Failure::Run("a process without a member".into()))?;
    thread::scope(|scope| {
        let mut others = Vec::new();
        for (t, taken) in members.into_iter().enumerate() {
            let work = move || run_member(group, taken, None, source, &mut Report::silent(), drop);
            let started = thread::Builder::new().name(format!("member {t}")).spawn_scoped(scope, work);
            others.push(started.map_err(|e| Failure::Unsupported(format!("cannot start a thread: {e}")))?);
        }
        let mine = run_member(group, last, plan, source, report, each);
        let panicked = || Err(Failure::Run("a thread panicked".into()));
        let all =
            std::iter::once(mine).chain(others.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())));
        // Reports the cause rather than its consequences on other members.
        let (mut first, mut cause) = (Ok(()), None);
        for failed in all.filter_map(Result::err) {
            if !failed.is_consequence() && cause.is_none() {
                cause = Some(failed);
            } else if first.is_ok() {
                first = Err(failed);
            }
        }
        cause.map_or(first, Err)
    })
}

fn run_member(
    group: &GroupConfig,
    member: Member,
    plan: Option<&[Spec]>,
    source: &Source,
    report: &mut Report,
    each: impl FnMut(TestResult),
) -> Result<(), Failure> {
    let pinned = group.pin(member.rank()).map_or(Ok(()), cpu::pin);
    let mut link = match group.partner {
        Partner::Other => Link::group(member, group.cores),
        Partner::Itself => Link::loopback_group(member, group.cores),
    };
    let result = match pinned {
        Ok(()) => session::run_member(plan, source, &mut link, report, each),
        Err(e) => Err(Failure::of_given_cores(&e)),
    };
    if let Err(e) = &result {
        link.abort(e);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(procs: u32, threads: u32, pins: &[usize]) -> GroupConfig {
        let pins = if pins.is_empty() { Pins::None } else { Pins::Group(pins.to_vec()) };
        let host = String::new();
        let (cores, partner) = (CoreSharing::Shared, Partner::Other);
        GroupConfig { host, port: 0, proc: 0, procs, threads, pins, cores, partner }
    }

    #[test]
    fn core_sharing_is_detected() {
        let of = |lists: &[&str], threads| {
            let all: Vec<CpuList> = lists.iter().map(|list| CpuList::parse(list).unwrap()).collect();
            core_sharing_of(&all, threads)
        };
        assert_eq!(of(&["0", "1"], 1), CoreSharing::Dedicated);
        assert_eq!(of(&["0,1", "0,1"], 1), CoreSharing::Dedicated);
        assert_eq!(of(&["0-3", "4-7"], 4), CoreSharing::Dedicated);
        assert_eq!(of(&["0", "0"], 1), CoreSharing::Shared);
        assert_eq!(of(&["0,1", "0,1"], 2), CoreSharing::Shared);
        assert_eq!(of(&["0", "1-7"], 2), CoreSharing::Shared, "the first's two threads");
    }

    #[test]
    fn partners_share_no_core() {
        for (procs, threads) in [(2, 1), (2, 2), (2, 4), (8, 1), (4, 3)] {
            for pins in [&[4, 6][..], &[1, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7]] {
                let group = group(procs, threads, pins);
                let half = group.members() / 2;
                for rank in 0..half {
                    let (one, other) = (group.pin(rank), group.pin(rank + half));
                    assert!(
                        one.is_some() && one != other,
                        "{procs} x {threads} on {pins:?}: {rank} on {one:?}"
                    );
                }
            }
        }
        assert_eq!(group(2, 2, &[]).pin(3), None);
        assert_eq!(group(2, 2, &[7]).pin(3), Some(7));
        assert_eq!(group(2, 2, &[3, 2, 1, 0]).pin(1), Some(2), "in the order of the list");
        let own = |proc, pins: &[usize]| GroupConfig {
            proc,
            pins: Pins::Process(pins.to_vec()),
            ..group(2, 2, &[])
        };
        assert_eq!([own(1, &[5, 4]).pin(2), own(1, &[5, 4]).pin(3)], [Some(5), Some(4)]);
        assert_eq!([own(0, &[6]).pin(0), own(0, &[6]).pin(1)], [Some(6), Some(6)]);
    }
}
