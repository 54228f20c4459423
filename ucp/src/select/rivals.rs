//! The kernel or packets, for a message out of a program's memory to another process of its host: by what both have taken
//! lately. How far two processors are from each other decides it, which differs between machines and changes while a program
//! runs. The receiver knows the times and is the [`Referee`]; the sender keeps to what that has said in [`Offers`], and tries
//! the other way now and then. Used by `lane` only. Pure: times are handed in, in any unit that is the same for both ways.

use std::fmt;

/// Lengths that are told apart: 16 KiB and more, 32 KiB and more, and so on.
pub const CLASSES: usize = 8;
/// The binary logarithm of the first.
const FIRST: u32 = 14;

/// Which class a length is of.
pub const fn class(len: usize) -> usize {
    let log = (len | 1).ilog2().saturating_sub(FIRST) as usize;
    if log < CLASSES { log } else { CLASSES - 1 }
}

/// The shortest length of a class.
pub const fn class_from(class: usize) -> usize {
    1 << (FIRST as usize + class)
}

/// Who moves a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum By {
    /// The receiver has the kernel read it.
    Kernel,
    /// Both ends' processors copy it.
    #[default]
    Packets,
}

/// By what it is decided (`UCX_KERNEL_COPY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Rule {
    /// What was measured as messages went.
    #[default]
    Auto,
    /// What transports say of themselves, or calibration has measured.
    Said,
    /// The kernel wherever it can.
    Kernel,
    /// Packets.
    Packets,
    /// By turns, whatever it takes: for tests.
    Turns,
}

impl Rule {
    const NAMES: [(&str, Rule); 5] = [
        ("auto", Rule::Auto),
        ("said", Rule::Said),
        ("kernel", Rule::Kernel),
        ("packets", Rule::Packets),
        ("turns", Rule::Turns),
    ];

    /// Whether it may change its mind from one message to the next.
    pub const fn is_open(self) -> bool {
        matches!(self, Rule::Auto | Rule::Turns)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Rule::NAMES.iter().find(|(_, rule)| rule == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl ucs::config::ConfigValue for Rule {
    fn parse(text: &str) -> Option<Rule> {
        Rule::NAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, rule)| *rule)
    }

    fn expected() -> String {
        Rule::NAMES.map(|(name, _)| name).join(", ")
    }
}

/// Bytes of packets whose times are one figure: packets come by fits and starts.
const RUN: usize = 1 << 16;
/// Figures that are remembered; the median counts.
const RECENT: usize = 3;
/// Reads of a class, in a row, before they are compared with anything: the first ones find memory that nobody has touched, and
/// fetch what later ones find in this processor's cache, if the sender has not written it anew.
const READS: u8 = 4;
/// Messages that are declined before some are read all the same, so that the time of a read is not that of long ago.
const STALE: u8 = 4;
/// How much faster the other way has to be, at least and at most.
const MARGIN: (f32, f32) = (1.08, 1.3);
/// How much longer packets take, at most, one after the other, than a message of them among many that are read.
const BIAS: f32 = 3.0;
/// Offers after which most of a bias is forgotten.
const FORGET: f32 = 2048.0;
/// Messages between two changes of mind by [`Rule::Turns`].
const TURN: u8 = 20;

/// The receiver's half, for one peer: what messages of it take, and who is to move the next one.
#[derive(Clone, Debug)]
pub struct Referee {
    /// Times of the latest runs of long packets, for each KiB; 0 if there were not so many.
    packets: [f32; RECENT],
    /// The run that has begun: its bytes and its time.
    run: (usize, u64),
    /// What the kernel takes to read a KiB, by class.
    kernel: [f32; CLASSES],
    /// Reads to come that are not compared with anything.
    blind: [u8; CLASSES],
    /// Messages declined since the last read, by class.
    declined: [u8; CLASSES],
    /// Classes that go by packets.
    by_packets: u8,
    /// What packets took as that was decided, until the next offer.
    believed: [Option<f32>; CLASSES],
    /// How much longer packets take, one after the other, than one message of them among many that are read: what its sender
    /// has written long before is here sooner.
    bias: [f32; CLASSES],
    /// How much faster the other way has to be: more for a while after each change of mind.
    margin: f32,
    turn: u8,
}

/// What a referee knows of a class of lengths: times for each KiB, in the unit they were handed in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// By packets.
    pub packets: Option<f32>,
    /// By the kernel.
    pub kernel: Option<f32>,
    /// Which is taken.
    pub by: By,
}

impl Default for Referee {
    fn default() -> Self {
        Referee {
            packets: [0.0; RECENT],
            run: (0, 0),
            kernel: [0.0; CLASSES],
            blind: [READS; CLASSES],
            declined: [0; CLASSES],
            by_packets: 0,
            believed: [None; CLASSES],
            bias: [1.0; CLASSES],
            margin: MARGIN.0,
            turn: 0,
        }
    }
}

/// A time for each KiB.
fn per_kib(time: u64, len: usize) -> f32 {
    time as f32 * 1024.0 / len.max(1) as f32
}

impl Referee {
    /// A long packet took so long to take in: the wait for it counts, as far as it was the sender's copy that was waited for.
    pub fn took_packet(&mut self, len: usize, time: u64) {
        let (bytes, sum) = (self.run.0.saturating_add(len), self.run.1.saturating_add(time));
        self.run = (bytes, sum);
        if bytes >= RUN {
            self.packets.rotate_right(1);
            self.packets[0] = per_kib(sum, bytes);
            self.run = (0, 0);
        }
    }

    /// The kernel took so long to read a message. One that is shorter than those of the first class, or a piece of one, says
    /// nothing of them.
    pub fn took_read(&mut self, len: usize, time: u64) {
        let at = class(len);
        if len < class_from(at) {
            return;
        }
        let (took, before) = (per_kib(time, len), self.kernel[at]);
        self.kernel[at] = match before {
            0.0 => took,
            // A time that is too long is chance's, which does not make it shorter.
            _ if took < before => (3.0 * took + before) / 4.0,
            _ => before + (took.min(2.0 * before) - before) / 8.0,
        };
    }

    /// What packets take for each KiB.
    fn packets(&self) -> Option<f32> {
        let [a, b, c] = self.packets;
        (c > 0.0).then(|| a.min(b).max(a.max(b).min(c)))
    }

    /// Who is to move a message of so many bytes that its sender has offered.
    pub fn judge(&mut self, rule: Rule, len: usize) -> By {
        let at = class(len);
        match rule {
            Rule::Auto => {}
            Rule::Turns => {
                self.turn = (self.turn + 1) % (2 * TURN);
                return if self.turn < TURN { By::Kernel } else { By::Packets };
            }
            Rule::Packets => return By::Packets,
            Rule::Said | Rule::Kernel => return By::Kernel,
        }
        if self.blind[at] > 0 {
            self.blind[at] -= 1;
            return By::Kernel;
        }
        let Some(packets) = self.packets() else { return By::Kernel };
        let bit = 1 << at;
        let (least, most) = MARGIN;
        let was_packets = self.by_packets & bit != 0;
        let changes = match was_packets {
            false => packets * self.bias[at] * self.margin < self.kernel[at],
            true => self.kernel[at] * self.margin < packets,
        };
        if changes {
            self.by_packets ^= bit;
            self.declined[at] = 0;
            self.margin = (self.margin * 1.1).min(most);
        } else {
            self.margin += (least - self.margin) / 64.0;
        }
        if let Some(believed) = self.believed[at].take() {
            self.bias[at] = (packets / believed).clamp(1.0, BIAS);
        } else if !was_packets {
            self.bias[at] += (1.0 - self.bias[at]) / FORGET;
            self.believed[at] = changes.then_some(packets);
        }
        if self.by_packets & bit == 0 {
            return By::Kernel;
        }
        if self.declined[at] == STALE {
            (self.declined[at], self.blind[at]) = (0, READS - 1);
            return By::Kernel;
        }
        self.declined[at] += 1;
        By::Packets
    }

    /// What is known of lengths like this one.
    pub fn figures(&self, len: usize) -> Figures {
        let at = class(len);
        Figures {
            packets: self.packets(),
            kernel: (self.kernel[at] > 0.0).then_some(self.kernel[at]),
            by: if self.by_packets & 1 << at == 0 { By::Kernel } else { By::Packets },
        }
    }
}

/// Messages before the other way is tried for the first time: if the kernel is taken to begin with, and if packets are.
const BEGIN: (u8, u8) = (8, 3);
/// Messages between two trials of the other way: soon after a change, and once it has often been found to be the slower one.
const GAP: (u8, u8) = (16, 128);

/// The sender's half, for one peer: whether to offer the next message to be read. Counts messages and asks no clock.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Messages of each class until the next trial.
    left: [u8; CLASSES],
    /// What that begins from.
    gap: [u8; CLASSES],
    /// Offers of a trial that are not answered.
    asked: [u8; CLASSES],
    /// Offers of a trial that are to be made at once.
    row: [u8; CLASSES],
    /// Classes of which there has been a message.
    begun: u8,
    /// Classes that are offered.
    kernel: u8,
    /// Classes of which the first offer of a trial has been read.
    won: u8,
}

impl Offers {
    /// How the next message of so many bytes goes; `said`: how it would by what is known beforehand.
    pub fn next(&mut self, len: usize, said: By) -> By {
        let at = class(len);
        let bit = 1 << at;
        if self.begun & bit == 0 {
            self.begun |= bit;
            self.gap[at] = GAP.0;
            self.left[at] = if said == By::Kernel { BEGIN.0 } else { BEGIN.1 };
            self.kernel |= if said == By::Kernel { bit } else { 0 };
        }
        let is_kernel = self.kernel & bit != 0;
        if self.row[at] > 0 {
            self.row[at] -= 1;
            self.asked[at] += 1;
            return By::Kernel;
        }
        if self.left[at] > 0 {
            self.left[at] -= 1;
            return if is_kernel { By::Kernel } else { By::Packets };
        }
        self.left[at] = self.gap[at];
        if is_kernel {
            // The receiver gets to know what packets take; if that is less, it declines what is offered next.
            self.gap[at] = self.gap[at].saturating_mul(2).min(GAP.1);
            return By::Packets;
        }
        // One that was never answered is forgotten.
        self.asked[at] = 1;
        self.won &= !bit;
        By::Kernel
    }

    /// The peer has read a message.
    pub fn was_read(&mut self, len: usize) {
        let at = class(len);
        let bit = 1 << at;
        if self.asked[at] == 0 {
            return;
        }
        self.asked[at] -= 1;
        if self.won & bit == 0 {
            // Perhaps only to see what that takes: that it is the better way some more tell, in a row.
            self.won |= bit;
            self.row[at] = READS;
        } else if self.asked[at] == 0 && self.row[at] == 0 {
            self.won &= !bit;
            self.kernel |= bit;
            self.gap[at] = GAP.0;
            self.left[at] = GAP.0;
        }
    }

    /// The peer would rather have a message in packets.
    pub fn was_declined(&mut self, len: usize) {
        let at = class(len);
        let bit = 1 << at;
        if self.kernel & bit != 0 {
            self.kernel &= !bit;
            self.gap[at] = GAP.0;
        } else if self.asked[at] > 0 {
            self.gap[at] = self.gap[at].saturating_mul(2).min(GAP.1);
        }
        (self.asked[at], self.row[at]) = (0, 0);
        self.won &= !bit;
        self.left[at] = self.gap[at];
    }

    /// How messages of so many bytes go at present; `None`: there has been none.
    pub fn now(&self, len: usize) -> Option<By> {
        let bit = 1 << class(len);
        match (self.begun & bit, self.kernel & bit) {
            (0, _) => None,
            (_, 0) => Some(By::Packets),
            _ => Some(By::Kernel),
        }
    }
}

#[cfg(test)]
mod tests;
