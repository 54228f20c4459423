//! Plays the matrix: for each network one pair of processes, which meet anew for every cell (for first contact, for every
//! message); then the captures are held against what each cell says it is. Called by the `interop` binary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::capture::{Captures, Id};
use super::cells::{Cell, Contact, Delivery, Kind, Net, Nic, Protocol, What};
use super::end::{Player, Programs};
use super::onesided;
use super::pair::{Fault, Msg, Pair};
use super::scenes::{Scene, Verdict};

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
    /// Seed of the device's dice.
    pub seed: u64,
}

/// What became of a cell, or what went wrong.
pub type Outcome = Result<Passed, String>;

/// A cell whose messages all came through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// How many there were.
    pub messages: usize,
    /// How they went.
    pub by: By,
}

/// How the messages of a cell that passed went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// As the cell says.
    Itself,
    /// In the way that needs no HANDSHAKE.
    Baseline,
}

/// Settings of the device and of libfabric that hold for the whole matrix.
fn common(net: Net, nic: Nic) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        // Two ends on one host: libfabric would go by its own shared memory if they had one GID.
        ("FI_EFA_ENABLE_SHM_TRANSFER", "0"),
        // Its default is 73 MB of receive buffers for every endpoint.
        ("FI_EFA_RX_SIZE", "128"),
    ];
    all.extend_from_slice(nic.settings());
    all.extend_from_slice(net.settings());
    all
}

/// A cell that was played: what its packets have to be.
struct Played {
    cell: Cell,
    messages: usize,
    met: Vec<(Id, Id)>,
}

impl Plan {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// All cells, network by network; `tell` hears of each as it ends.
    pub fn matrix(&self, mut tell: impl FnMut(&Cell, &Outcome)) -> Result<(), Fault> {
        for (net, nic) in Net::ALL.into_iter().flat_map(|net| Nic::ALL.map(|nic| (net, nic))) {
            let mut cells = cells(net);
            cells.retain(|cell| cell.what.nic() == nic && self.wants(&cell.to_string()));
            let mut rest = &cells[..];
            let mut nth = 0;
            while !rest.is_empty() {
                nth += 1;
                let dir = self.dir.join(format!("{net:?}-{nic:?}-{nth}"));
                let outcomes = self.group(&common(net, nic), rest, &dir)?;
                rest = &rest[outcomes.len()..];
                outcomes.iter().for_each(|(cell, outcome)| tell(cell, outcome));
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
        let answers = (scene.answers)(pair.release()?);
        pair.quit()?;
        let captures = Captures::read(&self.efa_dump, dir)?;
        clean(&captures, &met).map_err(Fault::Wire)?;
        let from =
            |(ours, theirs): (Id, Id)| if who == Player::Ours { (ours, theirs) } else { (theirs, ours) };
        for name in answers {
            if !met.iter().any(|pair| captures.packets(from(*pair), name) > 0) {
                return Err(Fault::Wire(format!("no {name} from {}", who.name())));
            }
        }
        Ok(())
    }

    /// All situations, each with processes of its own.
    pub fn scenes(&self, mut tell: impl FnMut(&Scene, Player, &Verdict)) -> Result<(), Fault> {
        for (nth, scene) in Scene::all().iter().enumerate() {
            for who in [Player::Ours, Player::Libfabric] {
                if !scene.receivers.contains(&who) || !self.wants(scene.name) {
                    continue;
                }
                let dir = self.dir.join(format!("scene-{nth}-{}", who.name()));
                make(&dir)?;
                let seed = self.seed.to_string();
                let pair = Pair::start(&self.programs, &dir, &common(Net::Ordered, Nic::Packets), &seed)?;
                let verdict = self.scene(scene, who, pair, &dir);
                if verdict.is_ok() {
                    let _ = std::fs::remove_dir_all(&dir);
                }
                tell(scene, who, &verdict.map_err(|fault| fault.to_string()));
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

/// Plays one cell; answers how many messages or operations it had.
fn play(pair: &mut Pair, cell: &Cell) -> Result<usize, Fault> {
    let mut messages = 0;
    match cell.contact {
        Contact::First => {
            for (nth, len) in cell.sizes().into_iter().enumerate() {
                pair.meet()?;
                messages += match cell.what {
                    What::Message(..) => first(pair, cell, len, nth)?,
                    _ => onesided::one(pair, cell, len, nth)?,
                };
                pair.part()?;
            }
        }
        Contact::After => {
            pair.meet()?;
            acquaint(pair, cell)?;
            messages += match cell.what {
                What::Message(..) => {
                    for (nth, len) in cell.sizes().into_iter().enumerate() {
                        let msg = message(pair, cell, len, nth);
                        pair.expected(cell.sender, &msg, 0)?;
                        let msg = message(pair, cell, len, nth + 1);
                        pair.unexpected(cell.sender, &msg)?;
                        let msg = Msg { parts: 1 + nth % 4, ..message(pair, cell, len, nth) };
                        pair.expected(cell.sender, &msg, 0)?;
                    }
                    3 * cell.sizes().len() + burst(pair, cell)?
                }
                _ => onesided::many(pair, cell)?,
            };
            pair.part()?;
        }
    }
    Ok(messages)
}

/// The first message ever, by turns expected and not.
fn first(pair: &mut Pair, cell: &Cell, len: usize, nth: usize) -> Result<usize, Fault> {
    let msg = message(pair, cell, len, nth);
    if nth.is_multiple_of(2) {
        pair.expected(cell.sender, &msg, 100)?;
    } else {
        pair.unexpected(cell.sender, &msg)?;
    }
    Ok(1)
}

/// The `nth` message of a cell. Every other one carries data besides, where that leaves the protocol as it is.
fn message(pair: &mut Pair, cell: &Cell, len: usize, nth: usize) -> Msg {
    let eager = matches!(cell.what, What::Message(Protocol::Eager, ..));
    let room = !eager || len + 8 <= cell.eager_max();
    let mut msg = pair.msg(len);
    msg.tag = (cell.what.kind() == Some(Kind::Tagged)).then_some(msg.nth << 32 | 0xfeed);
    // Of most sends libfabric 1.17 puts only the lower half of the data on the wire.
    let data = if cell.sender == Player::Ours { 0xda7a_0000_0000_0000 } else { 0xda7a_0000 };
    msg.data = (room && nth % 2 == 1).then_some(data | msg.nth);
    msg.how = if cell.what.delivery() == Delivery::Complete { "dc" } else { "" };
    msg
}

/// Small messages both ways, until both have been answered: the HANDSHAKEs are there.
fn acquaint(pair: &mut Pair, cell: &Cell) -> Result<(), Fault> {
    for from in [cell.sender, cell.sender.other(), cell.sender] {
        let mut msg = pair.msg(8);
        msg.tag = (cell.what.kind() == Some(Kind::Tagged)).then_some(7);
        pair.expected(from, &msg, 0)?;
    }
    // A HANDSHAKE may be held back longer than messages.
    std::thread::sleep(std::time::Duration::from_millis(20));
    Ok(())
}

/// Many messages under way at a time: matched by tag in reverse, or in order.
fn burst(pair: &mut Pair, cell: &Cell) -> Result<usize, Fault> {
    let count = if cell.what.nic() == Nic::Packets { 24 } else { 8 };
    let lens: Vec<usize> = cell.sizes().into_iter().cycle().take(count).collect();
    let mut all = Vec::new();
    for (nth, len) in lens.into_iter().enumerate() {
        all.push(message(pair, cell, len, nth));
    }
    let mut receives = all.clone();
    if cell.what.kind() == Some(Kind::Tagged) {
        receives.reverse();
    }
    let to = cell.sender.other();
    // A third of them come before their receive.
    let early = receives.len() * 2 / 3;
    for msg in &receives[..early] {
        pair.post_recv(to, msg, msg.len)?;
    }
    for msg in &all {
        pair.send(cell.sender, msg)?;
    }
    for msg in &receives[early..] {
        pair.post_recv(to, msg, msg.len)?;
    }
    for msg in &all {
        pair.received(to, msg)?;
        pair.sent(cell.sender, msg)?;
    }
    Ok(all.len())
}

/// Whether the wire shows what the cell says it is.
fn judge(captures: &Captures, played: &Played) -> Outcome {
    clean(captures, &played.met)?;
    let cell = &played.cell;
    let turn =
        |(ours, theirs): (Id, Id)| if cell.sender == Player::Ours { (ours, theirs) } else { (theirs, ours) };
    let ways: Vec<(Id, Id)> = played.met.iter().copied().map(turn).collect();
    let mut seen = captures.begun(&ways);
    // Messages besides: two of `acquaint`; and any number behind atomic operations, to tell of their arrival.
    let plain = if cell.what.kind() == Some(Kind::Tagged) { "EAGER_TAGRTM" } else { "EAGER_MSGRTM" };
    let besides = match (cell.what, cell.contact) {
        (What::Atomic(_), _) => usize::MAX,
        (_, Contact::After) => 2,
        (_, Contact::First) => 0,
    };
    let left = seen.remove(plain).unwrap_or(0).saturating_sub(besides);
    if left > 0 {
        seen.insert(plain.into(), left);
    }
    let by = how(cell, played.messages, seen).ok_or_else(|| {
        let want = cell.what.packet();
        format!("{} by {want} expected, seen {:?}", played.messages, captures.begun(&ways))
    })?;
    for (ours, theirs) in &played.met {
        for way in [(*ours, *theirs), (*theirs, *ours)] {
            let handshakes = captures.packets(way, "HANDSHAKE");
            // An end may close before the other's first packet has come.
            if handshakes > 1 || (handshakes == 0 && cell.contact == Contact::After) {
                return Err(format!("{handshakes} HANDSHAKEs one way"));
            }
        }
    }
    Ok(Passed { messages: played.messages, by })
}

/// How the messages went, if it is a way in which they may go.
fn how(cell: &Cell, messages: usize, mut seen: BTreeMap<String, usize>) -> Option<By> {
    let mut by_itself = seen.remove(&cell.what.packet()).unwrap_or(0);
    match cell.what {
        // Of a burst those that find another one under way are read as a whole.
        What::Message(Protocol::RuntRead, delivery, kind) if by_itself > 0 => {
            let whole = What::Message(Protocol::LongRead, delivery, kind).packet();
            by_itself += seen.remove(&whole).unwrap_or(0);
        }
        // A read goes in pieces, and none if it is of nothing.
        What::DirectRead => {
            let some = cell.sizes().iter().filter(|len| **len > 0).count();
            by_itself = if by_itself >= some { messages } else { by_itself };
        }
        _ => {}
    }
    let instead: usize = cell.before_handshake().iter().filter_map(|name| seen.remove(name)).sum();
    match (by_itself, instead) {
        _ if !seen.is_empty() => None,
        (n, 0) if n == messages => Some(By::Itself),
        (0, n) if n == messages => Some(By::Baseline),
        _ => None,
    }
}

/// Nothing violates the protocol.
fn clean(captures: &Captures, met: &[(Id, Id)]) -> Result<(), String> {
    match captures.violations(met).first() {
        None => Ok(()),
        Some(first) => Err(format!("violation: {first}")),
    }
}
