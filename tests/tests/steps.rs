//! A process ends at every step of every protocol, on both wires and in both roles: what becomes of the other one's part is
//! the table of `docs/deaths.md`, word for word. `STEPS=all` tries every way to end at every step, not only SIGKILL;
//! `STEPS=write` writes the table. No test harness: the program starts itself again as the process that is ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use suites::steps::op::How;
use suites::steps::side::Side;
use suites::steps::survivor::{Run, Told};
use suites::steps::{Closing, Ending, Moment, Role, victim};

const WIRES: [&str; 2] = ["posix", "efa"];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/deaths.md");
const BEGIN: &str = "<!-- steps -->\n";
const END: &str = "<!-- /steps -->\n";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "victim") {
        return victim::run(&args[1..]);
    }
    // A test runner asks what there is: nothing that it could run one by one.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let mode = std::env::var("STEPS").unwrap_or_default();
    let all = mode == "all";
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
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (is, tail) = rest.split_once(END).unwrap();
    if mode == "write" {
        return std::fs::write(PAGE, format!("{head}{BEGIN}{table}{END}{tail}")).unwrap();
    }
    for (is, must) in is.lines().zip(table.lines()) {
        assert_eq!(is, must, "docs/deaths.md says the first, the run was the second (STEPS=write writes it)");
    }
    assert_eq!(is, table);
    println!("test steps ... ok");
}

/// All operations on one wire.
struct Wire {
    name: &'static str,
    /// Sockets of `posix` are files here.
    dir: PathBuf,
    ended: u64,
    /// Of the table.
    rows: Vec<String>,
}

impl Wire {
    fn new(name: &'static str) -> Wire {
        let dir = std::env::temp_dir().join(format!("steps.{name}.{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Wire { name, dir, ended: 0, rows: Vec::new() }
    }

    fn run(mut self, all: bool) -> Wire {
        for &how in How::ALL {
            // Whose part ends well from when on, by role.
            let [target, initiator] = Role::ALL.map(|victim| self.end_each(how, victim, all));
            self.rows.push(format!("| {} | {} | {initiator} | {target} |\n", how.name(), self.name));
        }
        // What a process was killed with is removed by whom it was connected to, or by the next one that opens `posix`.
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::read_dir(&self.dir).unwrap().count() > 0 {
            assert!(Instant::now() < deadline, "{}: sockets are left", self.dir.display());
            std::thread::sleep(Duration::from_millis(100));
            drop(Side::open(self.name, self.dir.to_str().unwrap(), How::Eager));
        }
        self
    }

    fn start(&self, how: How, victim: Role) -> Run {
        Run::start(self.name, self.dir.to_str().unwrap(), how, victim)
    }

    /// Ends the one with the role `victim` at each step; answers from which step on the other's part ends well if it was
    /// killed, in words.
    fn end_each(&mut self, how: How, victim: Role, all: bool) -> String {
        let what = format!("{how:?} on {}, {} ends", self.name, victim.name());
        let moments = self.start(how, victim).moments();
        // Once it ends well, it does at every later step.
        let mut well: [Option<usize>; 4] = [None; 4];
        for k in 0..moments.len() {
            let killed = self.end(how, victim, &moments, k, Ending::Killed);
            note(&mut well[0], k, &killed, &format!("{what} by SIGKILL"));
            for (n, ending) in Ending::ORDERLY.into_iter().enumerate() {
                if !all && (k + n) % Ending::ORDERLY.len() != 0 {
                    continue;
                }
                let told = self.end(how, victim, &moments, k, ending);
                note(&mut well[1 + n], k, &told, &format!("{what} {ending:?}"));
                if victim == Role::Initiator && ending == Ending::Closed(Closing::InTime) {
                    assert!(
                        told.iter().all(|told| *told == Told::Well),
                        "{what} {ending:?} at {k}: {told:?}"
                    );
                }
            }
        }
        match (well[0], how.has_part(victim.other())) {
            (_, false) => String::new(),
            (Some(0), true) => "the start".into(),
            (Some(k), true) => moments[k].since(&moments[k - 1], victim),
            (None, true) => panic!("{what}: the other's part never ends well"),
        }
    }

    fn end(&mut self, how: How, victim: Role, moments: &[Moment], k: usize, ending: Ending) -> Vec<Told> {
        self.ended += 1;
        let mut run = self.start(how, victim);
        run.until(moments, k);
        let told = run.end(ending);
        assert_eq!(told.len(), usize::from(how.has_part(victim.other())));
        told
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Only the directory of a failed run has anything in it.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Notes from which step on all was well; it must stay so.
fn note(well: &mut Option<usize>, k: usize, told: &[Told], what: &str) {
    let is_well = told.iter().all(|told| *told == Told::Well);
    match *well {
        None if is_well => *well = Some(k),
        Some(from) => assert!(is_well, "{what}: well at step {from}, but at {k} {told:?}"),
        None => {}
    }
}
