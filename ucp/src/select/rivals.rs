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
/// Bytes of packets, none of them behind a read, after which their times are what they go on to be: the ring, of 1 MiB, has gone
/// round twice. Before, they may come late, as nobody had the ring in his cache, or soon, as their sender has written them long
/// before, and is ahead by a ring.
const SETTLED: usize = 2 << 20;
/// Reads, in a row, after which the same is so of reads: the first ones find memory that nobody has touched, and fetch what later
/// ones find in this processor's cache, if the sender has not written it anew.
const STREAK: u8 = 3;
/// Offers in a row of a trial, and reads that are done for it without being compared with anything.
const ROW: u8 = 6;
/// Messages that are declined before such a row is read all the same, so that the time of a read is not that of long ago: soon after
/// a change, and later.
const STALE: (u8, u8) = (4, 32);
/// How much faster the other way has to be, at least and at most.
const MARGIN: (f32, f32) = (1.08, 1.3);
/// Messages between two changes of mind by [`Rule::Turns`].
const TURN: u8 = 20;

/// The receiver's half, for one peer: what messages of it take, and who is to move the next one.
#[derive(Clone, Debug)]
pub struct Referee {
    /// What packets take for each KiB; 0: not known.
    packets: f32,
    /// The run that has begun: its bytes and its time.
    run: (usize, u64),
    /// Bytes of packets since the last read.
    settled: usize,
    /// Reads since the last packet.
    streak: u8,
    /// What the kernel takes to read a KiB, by class; 0: not known.
    kernel: [f32; CLASSES],
    /// Reads to come that are not compared with anything.
    blind: [u8; CLASSES],
    /// Messages to decline until the next such row, and what that begins from, by class.
    stale: [(u8, u8); CLASSES],
    /// Classes that go by packets.
    by_packets: u8,
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
            packets: 0.0,
            run: (0, 0),
            settled: 0,
            streak: 0,
            kernel: [0.0; CLASSES],
            blind: [ROW; CLASSES],
            stale: [(STALE.0, STALE.0); CLASSES],
            by_packets: 0,
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
        self.streak = 0;
        self.settled = self.settled.saturating_add(len);
        let (bytes, sum) = (self.run.0.saturating_add(len), self.run.1.saturating_add(time));
        self.run = (bytes, sum);
        if bytes < RUN {
            return;
        }
        self.run = (0, 0);
        let took = per_kib(sum, bytes);
        // Where the two ways go by turns nothing ever settles, and what is known must not stay for ever.
        let share = if self.settled > SETTLED { 0.5 } else { 1.0 / 512.0 };
        self.packets = if self.packets > 0.0 { self.packets + (took - self.packets) * share } else { took };
    }

    /// The kernel took so long to read a message. One that is shorter than those of the first class, or a piece of one, says
    /// nothing of them.
    pub fn took_read(&mut self, len: usize, time: u64) {
        let at = class(len);
        if len < class_from(at) {
            return;
        }
        (self.run, self.settled) = ((0, 0), 0);
        self.streak = self.streak.saturating_add(1);
        let (took, before) = (per_kib(time, len), self.kernel[at]);
        // A time that is too long is chance's, which does not make it shorter.
        let share = if took < before { 0.75 } else { 0.125 };
        let share = if took < before || self.streak > STREAK { share } else { 1.0 / 128.0 };
        self.kernel[at] =
            if before > 0.0 { before + (took.min(2.0 * before) - before) * share } else { took };
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
        if self.packets == 0.0 {
            return By::Kernel;
        }
        let bit = 1 << at;
        let (least, most) = MARGIN;
        let (now, other) = match self.by_packets & bit {
            0 => (self.kernel[at], self.packets),
            _ => (self.packets, self.kernel[at]),
        };
        if other * self.margin < now {
            self.by_packets ^= bit;
            self.stale[at] = (STALE.0, STALE.0);
            self.margin = (self.margin * 1.1).min(most);
        } else {
            self.margin += (least - self.margin) / 64.0;
        }
        if self.by_packets & bit == 0 {
            return By::Kernel;
        }
        let (left, begin) = &mut self.stale[at];
        if *left == 0 {
            *begin = (2 * *begin).min(STALE.1);
            *left = *begin;
            self.blind[at] = ROW - 1;
            return By::Kernel;
        }
        *left -= 1;
        By::Packets
    }

    /// What is known of lengths like this one.
    pub fn figures(&self, len: usize) -> Figures {
        let at = class(len);
        Figures {
            packets: (self.packets > 0.0).then_some(self.packets),
            kernel: (self.kernel[at] > 0.0).then_some(self.kernel[at]),
            by: if self.by_packets & 1 << at == 0 { By::Kernel } else { By::Packets },
        }
    }
}

/// Bytes that go in packets in a row, for a figure, while messages are read.
const LOOK: usize = SETTLED + 8 * RUN;
/// Bytes between two such looks, soon after a change and later.
const LOOK_GAP: (usize, usize) = (6 << 20, 160 << 20);
/// Bytes between two trials of the kernel, likewise.
const TRY_GAP: (usize, usize) = (1 << 20, 16 << 20);

/// How many messages of a class so many bytes are.
fn messages(bytes: usize, class: usize) -> u16 {
    bytes.div_ceil(class_from(class)).clamp(2, u16::MAX as usize) as u16
}

/// The sender's half, for one peer: whether to offer the next message to be read. Counts messages and asks no clock.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Messages of each class until the other way is looked at again.
    left: [u16; CLASSES],
    /// What that begins from.
    gap: [u16; CLASSES],
    /// Messages of a look that are to go in packets.
    look: [u16; CLASSES],
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
            self.settle(at, said);
        }
        if self.row[at] > 0 {
            self.row[at] -= 1;
            self.asked[at] += 1;
            return By::Kernel;
        }
        if self.look[at] > 0 {
            self.look[at] -= 1;
            return By::Packets;
        }
        let is_kernel = self.kernel & bit != 0;
        if self.left[at] > 0 {
            self.left[at] -= 1;
            return if is_kernel { By::Kernel } else { By::Packets };
        }
        self.left[at] = self.gap[at];
        if is_kernel {
            // The receiver gets to know what packets take; if that is less, it declines what is offered next.
            self.lengthen(at, LOOK_GAP.1);
            self.look[at] = messages(LOOK, at) - 1;
            return By::Packets;
        }
        if self.asked[at] > 0 && self.gap[at] < messages(TRY_GAP.1, at) {
            // More are under way than lie between two trials.
            self.lengthen(at, TRY_GAP.1);
            self.left[at] = self.gap[at];
            return By::Packets;
        }
        // One that was never answered is forgotten.
        self.asked[at] = 1;
        self.won &= !bit;
        By::Kernel
    }

    /// From now on this is the way.
    fn settle(&mut self, at: usize, by: By) {
        let bit = 1 << at;
        let gap = match by {
            By::Kernel => LOOK_GAP.0,
            By::Packets => TRY_GAP.0,
        };
        self.kernel = if by == By::Kernel { self.kernel | bit } else { self.kernel & !bit };
        self.gap[at] = messages(gap, at);
        self.left[at] = self.gap[at];
        self.look[at] = 0;
    }

    fn lengthen(&mut self, at: usize, most: usize) {
        self.gap[at] = self.gap[at].saturating_mul(2).min(messages(most, at));
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
            self.row[at] = ROW;
        } else if self.asked[at] == 0 && self.row[at] == 0 {
            self.won &= !bit;
            self.settle(at, By::Kernel);
        }
    }

    /// The peer would rather have a message in packets.
    pub fn was_declined(&mut self, len: usize) {
        let at = class(len);
        if self.kernel & 1 << at != 0 {
            self.settle(at, By::Packets);
        } else if self.asked[at] > 0 {
            self.lengthen(at, TRY_GAP.1);
            self.left[at] = self.gap[at];
        }
        (self.asked[at], self.row[at]) = (0, 0);
        self.won &= !(1 << at);
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
