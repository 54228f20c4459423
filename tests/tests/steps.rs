//! A process fails at every step of every protocol; the outcomes are the table of `docs/deaths.md`.
//! `STEPS=all` tries every way to end at every step, not only SIGKILL; `PAGE=write` writes the table.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use suites::steps::observer::{Notification, Run};
use suites::steps::op::Op;
use suites::steps::side::Side;
use suites::steps::{Closing, Ending, Role, Snapshot, failing_process};

const WIRES: [&str; 2] = ["posix", "efa"];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/deaths.md");
const BEGIN: &str = "<!-- steps -->\n";
const END: &str = "<!-- /steps -->\n";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "failing") {
        return failing_process::run(&args[1..]);
    }
    // A test runner lists what it could run one by one: nothing.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let all = std::env::var("STEPS").is_ok_and(|mode| mode == "all");
    let start = Instant::now();
    let wires = WIRES.map(|wire| std::thread::spawn(move || Wire::new(wire).run(all)));
    let [posix, efa] = wires.map(|wire| wire.join().unwrap_or_else(|_| std::process::exit(1)));
    println!("{} processes ended in {:.1} s", posix.ended + efa.ended, start.elapsed().as_secs_f64());
    let mut table =
        String::from("| operation | on | initiator's part ends well from | target's part ends well from |\n");
    table.push_str("|---|---|---|---|\n");
    for (posix, efa) in posix.rows.iter().zip(&efa.rows) {
        table.push_str(posix);
        table.push_str(efa);
    }
    ucs::testing::page_has(Path::new(PAGE), (BEGIN, END), &table);
    println!("test steps ... ok");
}

struct Wire {
    name: &'static str,
    dir: PathBuf,
    ended: u64,
    rows: Vec<String>,
}

impl Wire {
    fn new(name: &'static str) -> Wire {
        let dir = std::env::temp_dir().join(format!("steps.{name}.{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Wire { name, dir, ended: 0, rows: Vec::new() }
    }

    fn run(mut self, all: bool) -> Wire {
        for &op in Op::ALL {
            // The step from which on each role's operation succeeds.
            let [target, initiator] = Role::ALL.map(|failing| self.end_each(op, failing, all));
            self.rows.push(format!("| {} | {} | {initiator} | {target} |\n", op.name(), self.name));
        }
        // Sockets of a killed process are removed by its peer, or by the next process that opens `posix`.
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::read_dir(&self.dir).unwrap().count() > 0 {
            assert!(Instant::now() < deadline, "{}: sockets are left", self.dir.display());
            std::thread::sleep(Duration::from_millis(100));
            drop(Side::open(self.name, self.dir.to_str().unwrap(), Op::Eager));
        }
        self
    }

    fn start(&self, op: Op, failing: Role) -> Run {
        Run::start(self.name, self.dir.to_str().unwrap(), op, failing)
    }

    /// Ends process `failing` at each step; answers from which on the other's operation succeeds.
    fn end_each(&mut self, op: Op, failing: Role, all: bool) -> String {
        let what = format!("{op:?} on {}, {} ends", self.name, failing.name());
        // Two runs that agree: in one alone an answer may have been late.
        let mut snapshots = self.start(op, failing).snapshots();
        for _ in 0..5 {
            let again = self.start(op, failing).snapshots();
            if again == snapshots {
                break;
            }
            snapshots = again;
        }
        // After the first success it succeeds at every later step.
        let mut well: [Option<usize>; 4] = [None; 4];
        for k in 0..snapshots.len() {
            let killed = self.end(op, failing, &snapshots, k, Ending::Killed);
            note(&mut well[0], k, &killed, &format!("{what} by SIGKILL"));
            for (n, ending) in Ending::ORDERLY.into_iter().enumerate() {
                if !all && (k + n) % Ending::ORDERLY.len() != 0 {
                    continue;
                }
                let notifications = self.end(op, failing, &snapshots, k, ending);
                note(&mut well[1 + n], k, &notifications, &format!("{what} {ending:?}"));
                if failing == Role::Initiator && ending == Ending::Closed(Closing::Flush) {
                    assert!(
                        notifications.iter().all(|notifications| *notifications == Notification::Success),
                        "{what} {ending:?} at {k}: {notifications:?}"
                    );
                }
            }
        }
        match (well[0], op.has_part(failing.other())) {
            (_, false) => String::new(),
            (Some(0), true) => "the start".into(),
            (Some(k), true) => snapshots[k].since(&snapshots[k - 1], failing),
            (None, true) => panic!("{what}: the other's part never ends well"),
        }
    }

    fn end(
        &mut self,
        op: Op,
        failing: Role,
        snapshots: &[Snapshot],
        k: usize,
        ending: Ending,
    ) -> Vec<Notification> {
        self.ended += 1;
        let run = (0..5).find_map(|_| {
            let mut run = self.start(op, failing);
            run.until(snapshots, k).then_some(run)
        });
        let run =
            run.unwrap_or_else(|| panic!("{op:?} on {}: five times not what came before {k}", self.name));
        let notifications = run.end(ending);
        assert_eq!(notifications.len(), usize::from(op.has_part(failing.other())));
        notifications
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Only the directory of a failed run is not empty.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Records the first step with success; later ones must succeed too.
fn note(well: &mut Option<usize>, k: usize, notifications: &[Notification], what: &str) {
    let is_well = notifications.iter().all(|notifications| *notifications == Notification::Success);
    match *well {
        None if is_well => *well = Some(k),
        Some(from) => assert!(is_well, "{what}: well at step {from}, but at {k} {notifications:?}"),
        None => {}
    }
}
