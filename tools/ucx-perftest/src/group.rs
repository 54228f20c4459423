//! Groups: several processes, several threads in each, all measuring at once. Every thread has a seat of its own at a
//! hub, and everything else of its own too: link, interface or worker. Nothing is shared while a loop runs.
//! Called by `main`; the seats work through the plan in `session`.

use std::thread;

use tools_common::boot::{BootError, Hub, Listener, Seat};
use ucs::config::Source;
use ucs::sys::{CpuSet, cpu};

use crate::cpus::{Back, Cpus};
use crate::fail::Failure;
use crate::link::{Cores, Link};
use crate::local::TOOL;
use crate::report::{Done, Report};
use crate::session;
use crate::spec::Spec;

/// Who a seat's partner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partner {
    /// A seat of the other half.
    Other,
    /// Itself: `-l`.
    Itself,
}

/// Cores for seats, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pins {
    /// They run where they may.
    None,
    /// For all seats of the group.
    Group(Vec<usize>),
    /// For those of this process.
    Process(Vec<usize>),
}

/// Where a process stands in its group.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where the hub is.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// This process.
    pub proc: u32,
    /// How many there are.
    pub procs: u32,
    /// Threads of each.
    pub threads: u32,
    /// Cores for the seats.
    pub pins: Pins,
    /// Whether seats share cores.
    pub cores: Cores,
    /// Whom each seat measures with.
    pub partner: Partner,
}

impl Place {
    /// Seats of the whole group.
    pub fn seats(&self) -> u32 {
        self.procs * self.threads
    }

    /// The core of a seat: one each while there are enough. Else neighbours share one, so that the two of a pair, half
    /// the seats apart, do not, and the threads of one process are together as if `-c` had been given to it.
    fn pin(&self, rank: u32) -> Option<usize> {
        let (pins, rank, seats) = match &self.pins {
            Pins::None => return None,
            Pins::Group(pins) => (pins, rank, self.seats()),
            Pins::Process(pins) => (pins, rank - self.proc * self.threads, self.threads),
        };
        let (rank, seats) = (rank as usize, seats as usize);
        let at = if pins.len() >= seats { rank } else { rank * pins.len() / seats };
        pins.get(at).copied()
    }
}

/// Whether `seats` on this host have a core each, of those that this process may use.
pub fn share(seats: u32) -> Cores {
    CpuSet::allowed().map_or(Cores::Shared, |all| one_each(all.len(), seats))
}

/// Whether there are as many cores as seats.
pub fn one_each(cores: usize, seats: u32) -> Cores {
    if cores >= seats as usize { Cores::Enough } else { Cores::Shared }
}

/// Whether all seats on this host have a core each: of `threads` in each of these processes, which may run on these cores.
pub fn share_of(procs: &[Cpus], threads: u32) -> Cores {
    let mut all: Vec<usize> = procs.iter().flat_map(Cpus::as_slice).copied().collect();
    all.sort_unstable();
    all.dedup();
    if procs.iter().any(|one| one_each(one.as_slice().len(), threads) == Cores::Shared) {
        return Cores::Shared;
    }
    one_each(all.len(), (procs.len() as u32).saturating_mul(threads))
}

/// A hub at work.
#[must_use = "a process that ends takes its hub along, before others have heard the last of it"]
pub struct Working(thread::JoinHandle<()>);

/// Starts a hub for a group behind `listener`. It ends by itself when the seats do.
pub fn hub(
    listener: Listener,
    seats: u32,
    still: impl FnMut() -> Result<(), BootError> + Send + 'static,
) -> Result<Working, Failure> {
    let work = move || drop(Hub::new(listener, seats).serve(still));
    let started = thread::Builder::new().name("hub".into()).spawn(work);
    started.map(Working).map_err(|e| Failure::Cannot(format!("cannot start a thread: {e}")))
}

impl Working {
    /// Waits until all seats have left, after this process's have.
    pub fn finish(self) {
        // A hub that panicked has said so.
        let _ = self.0.join();
    }
}

/// Takes this process's seats and works through the plan. Its last seat prints by `report`; `plan` is what the group
/// measures, and is taken from whoever has one.
pub fn run(
    place: &Place,
    plan: Option<&[Spec]>,
    source: &Source,
    report: &mut Report,
    each: impl FnMut(Done),
) -> Result<(), Failure> {
    // The last seat is on this thread.
    let _back = Back::to_here();
    // All are taken before any begins: who cannot take one, or start a thread for it, leaves, which the others hear of.
    let join = |t| Seat::join(TOOL, &place.host, place.port, place.proc * place.threads + t, place.seats());
    let mut seats = (0..place.threads).map(join).collect::<Result<Vec<Seat>, _>>()?;
    let last = seats.pop().ok_or_else(|| Failure::Run("a process without a seat".into()))?;
    thread::scope(|scope| {
        let mut others = Vec::new();
        for (t, taken) in seats.into_iter().enumerate() {
            let work = move || seat(place, taken, None, source, &mut Report::silent(), drop);
            let started = thread::Builder::new().name(format!("seat {t}")).spawn_scoped(scope, work);
            others.push(started.map_err(|e| Failure::Cannot(format!("cannot start a thread: {e}")))?);
        }
        let mine = seat(place, last, plan, source, report, each);
        let panicked = || Err(Failure::Run("a thread panicked".into()));
        let all =
            std::iter::once(mine).chain(others.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())));
        // The cause rather than its echo.
        let (mut first, mut cause) = (Ok(()), None);
        for failed in all.filter_map(Result::err) {
            if !failed.is_echo() && cause.is_none() {
                cause = Some(failed);
            } else if first.is_ok() {
                first = Err(failed);
            }
        }
        cause.map_or(first, Err)
    })
}

fn seat(
    place: &Place,
    seat: Seat,
    plan: Option<&[Spec]>,
    source: &Source,
    report: &mut Report,
    each: impl FnMut(Done),
) -> Result<(), Failure> {
    let pinned = place.pin(seat.rank()).map_or(Ok(()), cpu::pin);
    let mut link = match place.partner {
        Partner::Other => Link::group(seat, place.cores),
        Partner::Itself => Link::loopbacks(seat, place.cores),
    };
    let result = match pinned {
        Ok(()) => session::group(plan, source, &mut link, report, each),
        Err(e) => Err(e.into()),
    };
    if let Err(e) = &result {
        link.give_up(e);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(procs: u32, threads: u32, pins: &[usize]) -> Place {
        let pins = if pins.is_empty() { Pins::None } else { Pins::Group(pins.to_vec()) };
        let host = String::new();
        let (cores, partner) = (Cores::Shared, Partner::Other);
        Place { host, port: 0, proc: 0, procs, threads, pins, cores, partner }
    }

    #[test]
    fn processes_with_a_core_of_their_own_each_share_none() {
        let of = |lists: &[&str], threads| {
            let all: Vec<Cpus> = lists.iter().map(|list| Cpus::parse(list).unwrap()).collect();
            share_of(&all, threads)
        };
        assert_eq!(of(&["0", "1"], 1), Cores::Enough);
        assert_eq!(of(&["0,1", "0,1"], 1), Cores::Enough);
        assert_eq!(of(&["0-3", "4-7"], 4), Cores::Enough);
        assert_eq!(of(&["0", "0"], 1), Cores::Shared);
        assert_eq!(of(&["0,1", "0,1"], 2), Cores::Shared);
        assert_eq!(of(&["0", "1-7"], 2), Cores::Shared, "the first's two threads");
    }

    #[test]
    fn the_two_of_a_pair_share_no_core() {
        for (procs, threads) in [(2, 1), (2, 2), (2, 4), (8, 1), (4, 3)] {
            for pins in [&[4, 6][..], &[1, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7]] {
                let place = place(procs, threads, pins);
                let half = place.seats() / 2;
                for rank in 0..half {
                    let (one, other) = (place.pin(rank), place.pin(rank + half));
                    assert!(
                        one.is_some() && one != other,
                        "{procs} x {threads} on {pins:?}: {rank} on {one:?}"
                    );
                }
            }
        }
        assert_eq!(place(2, 2, &[]).pin(3), None);
        assert_eq!(place(2, 2, &[7]).pin(3), Some(7));
        assert_eq!(place(2, 2, &[3, 2, 1, 0]).pin(1), Some(2), "in the order of the list");
        let own =
            |proc, pins: &[usize]| Place { proc, pins: Pins::Process(pins.to_vec()), ..place(2, 2, &[]) };
        assert_eq!([own(1, &[5, 4]).pin(2), own(1, &[5, 4]).pin(3)], [Some(5), Some(4)]);
        assert_eq!([own(0, &[6]).pin(0), own(0, &[6]).pin(1)], [Some(6), Some(6)]);
    }
}
