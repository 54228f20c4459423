//! Plays the matrix. One pair of processes for each network connects anew for every cell; then the captures
//! are compared with what the cell says. As many pairs play at a time as there are processors.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use super::capture::{Captures, Id};
use super::matrix::{Cell, Contact, Net, Nic, What};
use super::messages::play;
use super::pair::{Pair, PlayError, wrong};
use super::process::{Programs, Stack};
use super::scenarios::{Requests, Scenario, ScenarioResult};
use super::verify::{Outcome, Played, check_violations, verify};

/// Parameters of a run of the matrix.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The programs that play.
    pub programs: Programs,
    /// The program that reads captures.
    pub efa_dump: PathBuf,
    /// Directory for captures, with one below it for each group.
    pub dir: PathBuf,
    /// Only cells and scenarios whose name contains this.
    pub only: Option<String>,
    /// Seed of the device's random numbers.
    pub seed: u64,
}

enum Task {
    Cells(Net, Nic, Contact, Vec<Cell>),
    Scenario(usize, &'static Scenario, Stack),
}

/// A result.
pub enum Notification {
    /// A cell.
    Cell(Cell, Outcome),
    /// A scenario, in which the stack receives.
    Scenario(&'static Scenario, Stack, ScenarioResult),
}

/// Settings of the device and of libfabric for the whole matrix.
fn common(net: Net, nic: Nic) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        // With one GID libfabric would use its own shared memory.
        ("FI_EFA_ENABLE_SHM_TRANSFER", "0"),
        // The default is 73 MB of receive buffers for every endpoint; ours is 8 MB.
        ("FI_EFA_RX_SIZE", "128"),
        ("UCX_EFA_RX_QUEUE_LEN", "128"),
        ("UCX_EFA_RX_SPARE", "32"),
        ("UCX_EFA_TX_QUEUE_LEN", "64"),
    ];
    all.extend_from_slice(nic.settings());
    all.extend_from_slice(net.settings());
    all
}

impl Plan {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Plays all cells and scenarios, a few at a time; reports each to `tell`.
    pub fn all(&self, mut tell: impl FnMut(Notification)) -> Result<(), PlayError> {
        let (features, release) = self.features()?;
        let tasks = Mutex::new(self.tasks(features, release).into_iter());
        let (hand, results) = channel();
        std::thread::scope(|scope| {
            let pairs = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4);
            for _ in 0..pairs {
                let (hand, tasks) = (hand.clone(), &tasks);
                scope.spawn(move || {
                    loop {
                        let Some(task) = tasks.lock().ok().and_then(|mut tasks| tasks.next()) else { return };
                        let worked = self.work(&task, &hand);
                        if let Err(error) = worked {
                            // The receiver is gone only if another task has failed.
                            let _ = hand.send(Err(error));
                            return;
                        }
                    }
                });
            }
            drop(hand);
            results.into_iter().try_for_each(|notification| notification.map(&mut tell))
        })
    }

    /// The features of libfabric's HANDSHAKE on a fully capable device, and its release.
    fn features(&self) -> Result<(u64, (u64, u64)), PlayError> {
        let dir = self.dir.join("features");
        make(&dir)?;
        let seed = self.seed.to_string();
        // The C program does not tell features.
        let programs = Programs { provider: None, ..self.programs.clone() };
        let mut pair = Pair::start(&programs, &dir, &common(Net::Ordered, Nic::Writes), &seed)?;
        pair.connect()?;
        let hello = pair.msg(8);
        pair.expected(Stack::Libfabric, &hello, 0)?;
        pair.expected(Stack::Ours, &hello, 0)?;
        let line = pair.end(Stack::Ours).step("features")?;
        pair.disconnect()?;
        let release = pair.release()?;
        pair.quit()?;
        let _ = std::fs::remove_dir_all(&dir);
        let features = line.number_at(1).ok_or_else(|| wrong(Stack::Ours, "no features", &line))?;
        Ok((features, release))
    }

    fn tasks(&self, features: u64, release: (u64, u64)) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (nic, net) in Nic::ALL.into_iter().flat_map(|nic| Net::ALL.map(|net| (nic, net))) {
            for contact in [Contact::First, Contact::After] {
                let mut cells = cells(net);
                cells.retain(|cell| cell.what.nic() == nic && cell.contact == contact);
                cells.retain(|cell| features & cell.what.needs() == cell.what.needs());
                cells.retain(|cell| self.wants(&cell.to_string()));
                if !cells.is_empty() {
                    tasks.push(Task::Cells(net, nic, contact, cells));
                }
            }
        }
        let wanted = |scenario: &Scenario| self.wants(scenario.name) && (scenario.exists)(release);
        for (nth, scenario) in Scenario::all().iter().enumerate().filter(|(_, scenario)| wanted(scenario)) {
            tasks.extend(scenario.receivers.iter().map(|who| Task::Scenario(nth, scenario, *who)));
        }
        tasks
    }

    fn work(&self, task: &Task, hand: &Sender<Result<Notification, PlayError>>) -> Result<(), PlayError> {
        let say = |notification| {
            let _ = hand.send(Ok(notification));
        };
        match task {
            Task::Cells(net, nic, contact, cells) => {
                let mut rest = &cells[..];
                let mut nth = 0;
                while !rest.is_empty() {
                    nth += 1;
                    let dir = self.dir.join(format!("{net:?}-{nic:?}-{contact:?}-{nth}"));
                    let outcomes = self.group(&common(*net, *nic), rest, &dir)?;
                    rest = &rest[outcomes.len()..];
                    outcomes.into_iter().for_each(|(cell, outcome)| say(Notification::Cell(cell, outcome)));
                }
            }
            Task::Scenario(nth, scenario, who) => {
                let dir = self.dir.join(format!("scenario-{nth}-{}", who.name()));
                make(&dir)?;
                let seed = self.seed.to_string();
                let pair = Pair::start(&self.programs, &dir, &common(Net::Ordered, Nic::Packets), &seed)?;
                let result = self.scenario(scenario, *who, pair, &dir);
                if result.is_ok() {
                    let _ = std::fs::remove_dir_all(&dir);
                }
                say(Notification::Scenario(scenario, *who, result.map_err(|error| error.to_string())));
            }
        }
        Ok(())
    }

    /// Plays cells with one pair of processes until one fails, after which the processes are of no use.
    fn group(
        &self,
        settings: &[(&'static str, &'static str)],
        cells: &[Cell],
        dir: &Path,
    ) -> Result<Vec<(Cell, Outcome)>, PlayError> {
        make(dir)?;
        let seed = self.seed.to_string();
        let mut pair = Pair::start(&self.programs, dir, settings, &seed)?;
        let (mut played, mut failed) = (Vec::new(), None);
        for cell in cells {
            match play(&mut pair, cell) {
                Ok(messages) => {
                    played.push(Played { cell: *cell, messages, connected: pair.take_connected() })
                }
                Err(error) => {
                    failed = Some((*cell, Err(error.to_string())));
                    break;
                }
            }
        }
        if failed.is_none() {
            pair.quit()?;
        } else {
            drop(pair);
        }
        let mut outcomes = Vec::new();
        if !played.is_empty() {
            let captures = Captures::read(&self.efa_dump, dir)?;
            outcomes.extend(played.into_iter().map(|p| (p.cell, verify(&captures, &p))));
        }
        outcomes.extend(failed);
        if outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
            let _ = std::fs::remove_dir_all(dir);
        }
        Ok(outcomes)
    }

    fn scenario(&self, scenario: &Scenario, who: Stack, mut pair: Pair, dir: &Path) -> Result<(), PlayError> {
        (scenario.play)(&mut pair, who)?;
        let connected = pair.take_connected();
        let release = pair.release()?;
        let (answers, never) = ((scenario.answers)(release), (scenario.never)(release));
        let requests = scenario.requests;
        pair.quit()?;
        let captures = Captures::read(&self.efa_dump, dir)?;
        check_violations(&captures, &connected).map_err(PlayError::Wire)?;
        let from =
            |(ours, theirs): (Id, Id)| if who == Stack::Ours { (ours, theirs) } else { (theirs, ours) };
        if let Requests::WithAddress(least) = requests {
            let mut seen = 0;
            for (ours, theirs) in &connected {
                seen += captures.addressed((*theirs, *ours)).map_err(PlayError::Wire)?;
            }
            if seen < least {
                return Err(PlayError::Wire(format!("{seen} requests of libfabric's, expected {least}")));
            }
        }
        for name in answers {
            if !connected.iter().any(|pair| captures.packets(from(*pair), name) > 0) {
                return Err(PlayError::Wire(format!("no {name} from {}", who.name())));
            }
        }
        for name in never {
            if connected.iter().any(|pair| captures.packets(from(*pair), name) > 0) {
                return Err(PlayError::Wire(format!("{name} from {}", who.name())));
            }
        }
        Ok(())
    }
}

fn make(dir: &Path) -> Result<(), PlayError> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).map_err(|e| PlayError::Dump(format!("{}: {e}", dir.display())))
}

/// Every cell over a network.
pub fn cells(net: Net) -> Vec<Cell> {
    let mut all = Vec::new();
    for what in What::all() {
        for sender in [Stack::Ours, Stack::Libfabric] {
            if sender == Stack::Ours && what.is_unconfirmed() {
                continue;
            }
            for contact in [Contact::First, Contact::After] {
                all.push(Cell { what, sender, contact, net });
            }
        }
    }
    all
}
