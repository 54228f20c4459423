//! Two ends: one process of ours, one of libfabric. They connect, exchange messages, disconnect. Used by
//! `run` and `scenarios`. Checks single messages: whole, once, from the right sender.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::capture::Id;
use super::control::{Line, bytes, raw_address, sum};
use super::process::{EndProcess, ProcessError, Programs, Stack};

#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("{}: {what}: {line}", .who.name())]
    Wrong { who: Stack, what: String, line: String },
    #[error("on the wire: {0}")]
    Wire(String),
    #[error("efa-dump: {0}")]
    Dump(String),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Msg {
    pub len: usize,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    /// Further words of the `send` step: `dc`, `inject`.
    pub how: &'static str,
    /// Pieces of memory at libfabric's end, up to 4; 0 means 1.
    pub parts: usize,
    /// Pieces of memory at our end when it receives.
    pub pieces: usize,
    /// The number in this pair: seed of its bytes and name of its operations.
    pub nth: u64,
}

pub struct Pair {
    ours: Option<EndProcess>,
    libfabric: Option<EndProcess>,
    programs: Programs,
    settings: Vec<(String, String)>,
    nth: u64,
    connected: Vec<(Id, Id)>,
    /// Results of computations so far, to be compared with the other end's.
    pub computed: HashMap<String, String>,
    addresses: [String; 2],
    more: Vec<EndProcess>,
}

impl Pair {
    pub fn start(
        programs: &Programs,
        dir: &Path,
        settings: &[(&'static str, &'static str)],
        seed: &str,
    ) -> Result<Pair, PlayError> {
        let mut all: Vec<(String, String)> =
            settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        all.push(("SOFTEFA_PCAP".into(), pcap(dir).to_string_lossy().into_owned()));
        all.push(("SOFTEFA_SEED".into(), seed.into()));
        let mut pair = Pair {
            ours: None,
            libfabric: None,
            programs: programs.clone(),
            settings: all,
            nth: 0,
            connected: Vec::new(),
            computed: HashMap::new(),
            addresses: [String::new(), String::new()],
            more: Vec::new(),
        };
        pair.restart(Stack::Libfabric)?;
        pair.restart(Stack::Ours)?;
        Ok(pair)
    }

    /// Starts an end's process, after killing the old one.
    pub fn restart(&mut self, who: Stack) -> Result<(), PlayError> {
        let slot = match who {
            Stack::Ours => &mut self.ours,
            Stack::Libfabric => &mut self.libfabric,
        };
        *slot = None;
        *slot = Some(EndProcess::start(who, &self.programs, &self.settings)?);
        Ok(())
    }

    /// Starts a further end, which lives as long as the pair.
    pub fn another(&mut self, who: Stack) -> Result<&mut EndProcess, PlayError> {
        self.more.push(EndProcess::start(who, &self.programs, &self.settings)?);
        Ok(self.more.last_mut().expect("just pushed"))
    }

    pub fn more(&mut self) -> &mut [EndProcess] {
        &mut self.more
    }

    pub fn release(&mut self) -> Result<(u64, u64), PlayError> {
        let line = self.end(Stack::Libfabric).step("version")?;
        let release = line.word(2).and_then(|word| word.split_once('.'));
        let release = release.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        release.ok_or_else(|| wrong(Stack::Libfabric, "no release", &line))
    }

    /// Whether the devices reach each other over UDP, where a GID is address and port.
    pub fn is_over_udp(&self) -> bool {
        self.programs.settings.iter().any(|(key, _)| key == "SOFTEFA_NET")
    }

    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.push((key.into(), value.into()));
    }

    pub fn end(&mut self, who: Stack) -> &mut EndProcess {
        let end = match who {
            Stack::Ours => &mut self.ours,
            Stack::Libfabric => &mut self.libfabric,
        };
        end.as_mut().expect("both run from `start` on")
    }

    /// Opens an endpoint of `who`; answers its address in hexadecimal.
    pub fn open(&mut self, who: Stack) -> Result<String, PlayError> {
        let opened = self.end(who).step("open")?;
        let address = opened.word(1).unwrap_or("").to_owned();
        self.addresses[who as usize].clone_from(&address);
        Ok(address)
    }

    /// The address of the endpoint that `who` opened last.
    pub fn address(&self, who: Stack) -> &str {
        &self.addresses[who as usize]
    }

    pub fn connect(&mut self) -> Result<(), PlayError> {
        let ours = self.open(Stack::Ours)?;
        let theirs = self.open(Stack::Libfabric)?;
        self.introduce(&ours, &theirs)
    }

    pub fn introduce(&mut self, ours: &str, theirs: &str) -> Result<(), PlayError> {
        self.end(Stack::Ours).step(&format!("peer {theirs}"))?;
        self.end(Stack::Libfabric).step(&format!("peer {ours}"))?;
        self.note(ours, theirs);
        Ok(())
    }

    /// Records a pair of endpoints whose packets will be checked.
    pub fn note(&mut self, ours: &str, theirs: &str) {
        if let (Some(ours), Some(theirs)) = (raw_address(ours), raw_address(theirs)) {
            self.connected.push((Id::of(&ours), Id::of(&theirs)));
        }
    }

    pub fn disconnect(&mut self) -> Result<(), PlayError> {
        for who in [Stack::Ours, Stack::Libfabric] {
            if let Some(line) = self.end(who).unclaimed_lines().first() {
                return Err(wrong(who, "said unasked", line));
            }
        }
        // From here on an end may get late packets of the other.
        self.end(Stack::Libfabric).step("close")?;
        self.end(Stack::Ours).step("close")?;
        for who in [Stack::Ours, Stack::Libfabric] {
            let lines = self.end(who).unclaimed_lines();
            if let Some(line) = lines.iter().find(|line| line.word(0) != Some("trouble")) {
                return Err(wrong(who, "said unasked", line));
            }
        }
        Ok(())
    }

    /// The endpoints connected since the last call, ours first.
    pub fn take_connected(&mut self) -> Vec<(Id, Id)> {
        std::mem::take(&mut self.connected)
    }

    pub fn quit(mut self) -> Result<(), PlayError> {
        for end in self.more.drain(..).chain([self.ours.take(), self.libfabric.take()].into_iter().flatten())
        {
            end.quit()?;
        }
        Ok(())
    }

    pub fn msg(&mut self, len: usize) -> Msg {
        self.nth += 1;
        Msg { len, nth: self.nth, ..Msg::default() }
    }

    pub fn post_recv(&mut self, to: Stack, msg: &Msg, room: usize) -> Result<(), PlayError> {
        let tag = msg.tag.map_or_else(String::new, |tag| format!(" tag={tag:#x}"));
        let parts = parts(if to == Stack::Ours { msg.pieces } else { msg.parts });
        self.end(to).step(&format!("recv r{} {room}{tag}{parts}", msg.nth))?;
        Ok(())
    }

    /// Sends a message to the first peer of the sender.
    pub fn send(&mut self, from: Stack, msg: &Msg) -> Result<(), PlayError> {
        let tag = msg.tag.map_or_else(String::new, |tag| format!(" tag={tag:#x}"));
        let data = msg.data.map_or_else(String::new, |data| format!(" data={data:#x}"));
        let (parts, how) = (parts(if from == Stack::Ours { 1 } else { msg.parts }), msg.how);
        self.end(from).step(&format!("send s{0} {1} seed={0}{tag}{data}{parts} {how}", msg.nth, msg.len))?;
        Ok(())
    }

    pub fn sent(&mut self, from: Stack, msg: &Msg) -> Result<(), PlayError> {
        let line = self.end(from).ended(&format!("s{}", msg.nth))?;
        if line.word(0) == Some("done") { Ok(()) } else { Err(wrong(from, "send failed", &line)) }
    }

    pub fn received(&mut self, to: Stack, msg: &Msg) -> Result<(), PlayError> {
        let line = self.end(to).ended(&format!("r{}", msg.nth))?;
        check(to, msg, &line, Some("0"))
    }

    /// Sends an expected message, into a buffer that is `spare` bytes longer.
    pub fn expected(&mut self, from: Stack, msg: &Msg, spare: usize) -> Result<(), PlayError> {
        self.post_recv(from.other(), msg, msg.len + spare)?;
        self.send(from, msg)?;
        self.received(from.other(), msg)?;
        self.sent(from, msg)
    }

    /// Sends an unexpected message; its receive is posted later.
    pub fn unexpected(&mut self, from: Stack, msg: &Msg) -> Result<(), PlayError> {
        self.send(from, msg)?;
        std::thread::sleep(Duration::from_millis(3));
        if msg.how == "dc" && self.end(from).has_ended(&format!("s{}", msg.nth)) {
            return Err(PlayError::Wrong {
                who: from,
                what: "delivery complete before there was a receive".into(),
                line: format!("message {} of {} bytes", msg.nth, msg.len),
            });
        }
        self.post_recv(from.other(), msg, msg.len)?;
        self.received(from.other(), msg)?;
        self.sent(from, msg)
    }
}

fn parts(count: usize) -> String {
    if count > 1 { format!(" parts={count}") } else { String::new() }
}

fn pcap(dir: &Path) -> PathBuf {
    dir.join("%p.pcapng")
}

pub fn wrong(who: Stack, what: &str, line: &Line) -> PlayError {
    PlayError::Wrong { who, what: what.into(), line: line.text().into() }
}

/// Checks a completed receive, and its sender `from` unless `None`.
pub fn check(who: Stack, msg: &Msg, line: &Line, from: Option<&str>) -> Result<(), PlayError> {
    let want_sum = format!("{:016x}", sum(&bytes(msg.len, msg.nth)));
    // 1.17 forgets the flag, but not the data, of an unexpected message.
    let data = line.number("data").or_else(|| line.number("unflagged").filter(|_| msg.data.is_some()));
    let checks = [
        (line.word(0) == Some("done"), "the receive failed"),
        (line.number("len") == Some(msg.len as u64), "another length"),
        (line.number("tag") == Some(msg.tag.unwrap_or(0)), "another tag"),
        (data == msg.data, "other data"),
        (from.is_none() || line.value("from") == from, "another sender"),
        (line.value("sum") == Some(&want_sum), "other bytes"),
        (line.value("guard") != Some("broken"), "bytes behind the message were written"),
    ];
    match checks.into_iter().find(|(good, _)| !good) {
        None => Ok(()),
        Some((_, what)) => Err(wrong(who, &format!("{what} than {msg:?}"), line)),
    }
}
