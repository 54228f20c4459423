//! Plays the matrix: for each network one pair of processes, which meet anew for every cell (for first contact, for every
//! message); then the captures are held against what each cell says it is. As many pairs play at a time as there are
//! processors. Called by the `interop` binary.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use super::capture::{Captures, Id};
use super::cells::{Cell, Contact, Net, Nic, What};
use super::end::{Player, Programs};
use super::judge::{Outcome, Played, clean, judge};
use super::messages::play;
use super::pair::{Fault, Pair, wrong};
use super::scenes::{Requests, Scene, Verdict};

/// What to run, and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The programs that play.
    pub programs: Programs,
    /// The program that reads captures.
    pub efa_dump: PathBuf,
    /// Where captures go; a directory for each group is made in it.
    pub dir: PathBuf,
    /// Only cells and situations whose name has this in it.
    pub only: Option<String>,
    /// Seed of the device's rng.
    pub seed: u64,
}

/// What one pair of processes plays.
enum Job {
    Cells(Net, Nic, Contact, Vec<Cell>),
    Scene(usize, &'static Scene, Player),
}

/// Something has ended.
pub enum Told {
    /// A cell.
    Cell(Cell, Outcome),
    /// A situation, in which the player receives.
    Scene(&'static Scene, Player, Verdict),
}

/// Settings of the device and of libfabric that hold for the whole matrix.
fn common(net: Net, nic: Nic) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        // Two ends on one host: libfabric would go by its own shared memory if they had one GID.
        ("FI_EFA_ENABLE_SHM_TRANSFER", "0"),
        // Its default is 73 MB of receive buffers for every endpoint; ours is 8 MB.
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

    /// All cells and situations, a few at a time; `tell` hears of each as it ends.
    pub fn all(&self, mut tell: impl FnMut(Told)) -> Result<(), Fault> {
        let (features, release) = self.features()?;
        let jobs = Mutex::new(self.jobs(features, release).into_iter());
        let (hand, results) = channel();
        std::thread::scope(|scope| {
            let pairs = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4);
            for _ in 0..pairs {
                let (hand, jobs) = (hand.clone(), &jobs);
                scope.spawn(move || {
                    loop {
                        let Some(job) = jobs.lock().ok().and_then(|mut jobs| jobs.next()) else { return };
                        let told = self.work(&job, &hand);
                        if let Err(fault) = told {
                            // Nobody listens only if the driver ends for another fault.
                            let _ = hand.send(Err(fault));
                            return;
                        }
                    }
                });
            }
            drop(hand);
            results.into_iter().try_for_each(|told| told.map(&mut tell))
        })
    }

    /// What libfabric's HANDSHAKE says of a device that can do everything, and its release.
    fn features(&self) -> Result<(u64, (u64, u64)), Fault> {
        let dir = self.dir.join("features");
        make(&dir)?;
        let seed = self.seed.to_string();
        let mut pair = Pair::start(&self.programs, &dir, &common(Net::Ordered, Nic::Writes), &seed)?;
        pair.meet()?;
        let hello = pair.msg(8);
        pair.expected(Player::Libfabric, &hello, 0)?;
        pair.expected(Player::Ours, &hello, 0)?;
        let line = pair.end(Player::Ours).step("features")?;
        pair.part()?;
        let release = pair.release()?;
        pair.quit()?;
        let _ = std::fs::remove_dir_all(&dir);
        let features = line.number_at(1).ok_or_else(|| wrong(Player::Ours, "no features", &line))?;
        Ok((features, release))
    }

    /// What there is to do.
    fn jobs(&self, features: u64, release: (u64, u64)) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (nic, net) in Nic::ALL.into_iter().flat_map(|nic| Net::ALL.map(|net| (nic, net))) {
            for contact in [Contact::First, Contact::After] {
                let mut cells = cells(net);
                cells.retain(|cell| cell.what.nic() == nic && cell.contact == contact);
                cells.retain(|cell| features & cell.what.needs() == cell.what.needs());
                cells.retain(|cell| self.wants(&cell.to_string()));
                if !cells.is_empty() {
                    jobs.push(Job::Cells(net, nic, contact, cells));
                }
            }
        }
        let wanted = |scene: &Scene| self.wants(scene.name) && (scene.exists)(release);
        for (nth, scene) in Scene::all().iter().enumerate().filter(|(_, scene)| wanted(scene)) {
            jobs.extend(scene.receivers.iter().map(|who| Job::Scene(nth, scene, *who)));
        }
        jobs
    }

    fn work(&self, job: &Job, hand: &Sender<Result<Told, Fault>>) -> Result<(), Fault> {
        let say = |told| {
            // As above.
            let _ = hand.send(Ok(told));
        };
        match job {
            Job::Cells(net, nic, contact, cells) => {
                let mut rest = &cells[..];
                let mut nth = 0;
                while !rest.is_empty() {
                    nth += 1;
                    let dir = self.dir.join(format!("{net:?}-{nic:?}-{contact:?}-{nth}"));
                    let outcomes = self.group(&common(*net, *nic), rest, &dir)?;
                    rest = &rest[outcomes.len()..];
                    outcomes.into_iter().for_each(|(cell, outcome)| say(Told::Cell(cell, outcome)));
                }
            }
            Job::Scene(nth, scene, who) => {
                let dir = self.dir.join(format!("scene-{nth}-{}", who.name()));
                make(&dir)?;
                let seed = self.seed.to_string();
                let pair = Pair::start(&self.programs, &dir, &common(Net::Ordered, Nic::Packets), &seed)?;
                let verdict = self.scene(scene, *who, pair, &dir);
                if verdict.is_ok() {
                    let _ = std::fs::remove_dir_all(&dir);
                }
                say(Told::Scene(scene, *who, verdict.map_err(|fault| fault.to_string())));
            }
        }
        Ok(())
    }

    /// Plays cells with one pair of processes until one fails; then no more can be asked of these processes.
    fn group(
        &self,
        settings: &[(&'static str, &'static str)],
        cells: &[Cell],
        dir: &Path,
    ) -> Result<Vec<(Cell, Outcome)>, Fault> {
        make(dir)?;
        let seed = self.seed.to_string();
        let mut pair = Pair::start(&self.programs, dir, settings, &seed)?;
        let (mut played, mut failed) = (Vec::new(), None);
        for cell in cells {
            match play(&mut pair, cell) {
                Ok(messages) => played.push(Played { cell: *cell, messages, met: pair.take_met() }),
                Err(fault) => {
                    failed = Some((*cell, Err(fault.to_string())));
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
            outcomes.extend(played.into_iter().map(|p| (p.cell, judge(&captures, &p))));
        }
        outcomes.extend(failed);
        if outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
            let _ = std::fs::remove_dir_all(dir);
        }
        Ok(outcomes)
    }

    /// Plays a situation, and looks at what was on the wire.
    fn scene(&self, scene: &Scene, who: Player, mut pair: Pair, dir: &Path) -> Result<(), Fault> {
        (scene.play)(&mut pair, who)?;
        let met = pair.take_met();
        let release = pair.release()?;
        let (answers, never) = ((scene.answers)(release), (scene.never)(release));
        let requests = scene.requests;
        pair.quit()?;
        let captures = Captures::read(&self.efa_dump, dir)?;
        clean(&captures, &met).map_err(Fault::Wire)?;
        let from =
            |(ours, theirs): (Id, Id)| if who == Player::Ours { (ours, theirs) } else { (theirs, ours) };
        if let Requests::WithAddress(least) = requests {
            let mut seen = 0;
            for (ours, theirs) in &met {
                seen += captures.addressed((*theirs, *ours)).map_err(Fault::Wire)?;
            }
            if seen < least {
                return Err(Fault::Wire(format!("{seen} requests of libfabric's, expected {least}")));
            }
        }
        for name in answers {
            if !met.iter().any(|pair| captures.packets(from(*pair), name) > 0) {
                return Err(Fault::Wire(format!("no {name} from {}", who.name())));
            }
        }
        for name in never {
            if met.iter().any(|pair| captures.packets(from(*pair), name) > 0) {
                return Err(Fault::Wire(format!("{name} from {}", who.name())));
            }
        }
        Ok(())
    }
}

fn make(dir: &Path) -> Result<(), Fault> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).map_err(|e| Fault::Dump(format!("{}: {e}", dir.display())))
}

/// Every cell over a network.
pub fn cells(net: Net) -> Vec<Cell> {
    let mut all = Vec::new();
    for what in What::all() {
        for sender in [Player::Ours, Player::Libfabric] {
            if sender == Player::Ours && what.is_unconfirmed() {
                continue;
            }
            for contact in [Contact::First, Contact::After] {
                all.push(Cell { what, sender, contact, net });
            }
        }
    }
    all
}
