use super::*;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use ucs::sys::proc::start_time;

struct Table {
    slots: Vec<MarkSlot>,
    used: AtomicU32,
}

impl Table {
    fn new(len: usize) -> Table {
        let free = || MarkSlot { process: AtomicU64::new(0), word: AtomicU64::new(0) };
        Table { slots: std::iter::repeat_with(free).take(len).collect(), used: AtomicU32::new(0) }
    }

    fn marks(&self) -> Marks<'_> {
        Marks { slots: &self.slots, used: &self.used }
    }
}

/// A process that does nothing, ended with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Sleeper {
        Sleeper(Command::new("sleep").arg("100").spawn().unwrap())
    }

    fn id(&self) -> ProcId {
        let pid = self.0.id();
        ProcId { pid, start: start_time(pid).unwrap().unwrap() }
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn seconds(call: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    call();
    begun.elapsed().as_secs_f64()
}

#[test]
fn the_copies_of_one_key_or_queue_pair_are_waited_for_until_they_end() {
    let table = &Table::new(8);
    let waits: [fn(&Marks<'_>); 2] = [|marks| marks.await_key(0x12_3456), |marks| marks.await_qp(77)];
    for wait in waits {
        let (ended, done) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let marker = Marker::default();
        let mark = marker.mark(table.marks(), ProcId::current(), 77, 0x12_3456);
        let others = seconds(|| {
            table.marks().await_key(0x12_3457);
            table.marks().await_qp(78);
        });
        assert!(others < 0.5, "{others}");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                ended.store(true, Ordering::SeqCst);
                drop(mark);
                // The next copy, of the same queue pair by the same key, is not waited for.
                let _next = marker.mark(table.marks(), ProcId::current(), 77, 0x12_3456);
                while !done.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            let waited = seconds(|| wait(&table.marks()));
            done.store(true, Ordering::SeqCst);
            assert!(ended.load(Ordering::SeqCst) && waited < 0.9, "{waited}");
        });
    }
}

#[test]
fn a_requester_that_dies_holds_nobody_up_and_one_that_lives_for_a_second() {
    let (table, mut sleeper, marker) = (Table::new(8), Sleeper::new(), Marker::default());
    std::mem::forget(marker.mark(table.marks(), sleeper.id(), 1, 2));
    let alive = seconds(|| table.marks().await_key(2));
    assert!((1.0..3.0).contains(&alive), "{alive}");
    sleeper.end();
    let dead = seconds(|| table.marks().await_key(2));
    assert!(dead < 0.5, "{dead}");
    assert_eq!(mark::look(&table.slots[0].word), 0);
}

#[test]
fn slots_are_used_again() {
    let (table, mut sleeper) = (Table::new(4), Sleeper::new());
    let me = ProcId::current();
    let markers: Vec<Marker> = (0..4).map(|_| Marker::default()).collect();
    let marked = |marker: &Marker, who| drop(marker.mark(table.marks(), who, 1, 2));
    marked(&markers[0], me);
    marked(&markers[1], sleeper.id());
    marked(&markers[2], me);
    markers[0].free(table.marks());
    marked(&markers[3], me);
    assert_eq!((markers[3].at.get(), table.used.load(Relaxed)), (0, 3));
    marked(&markers[0], me);
    assert_eq!(table.used.load(Relaxed), 4);
    // All are in use: a copy is made without a mark. Then one is a dead process's.
    let late = Marker::default();
    assert!(late.mark(table.marks(), me, 1, 2).0.is_none());
    sleeper.end();
    let later = Marker::default();
    assert!(later.mark(table.marks(), me, 1, 2).0.is_some());
    assert_eq!((later.at.get(), table.slots[1].process()), (1, Some(me)));
}

/// Whatever another process writes into the count of slots or into a slot.
#[test]
fn overwritten_words_are_survived() {
    let table = Table::new(4);
    table.used.store(u32::MAX, Relaxed);
    for slot in &table.slots {
        slot.process.store(u64::MAX, Relaxed);
        slot.word.store(u64::MAX, Relaxed);
    }
    let waited = seconds(|| table.marks().await_key(u32::MAX));
    assert!(waited < 3.0, "{waited}");
    drop(Marker::default().mark(table.marks(), ProcId::current(), 1, 2));
}
