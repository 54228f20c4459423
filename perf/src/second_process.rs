//! The second process of a measuring program: the same program with the word `second` behind its arguments.
//! The two exchange lines of hexadecimal digits over pipes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Error of a measuring program, for one line on standard error.
pub type Failure = Box<dyn std::error::Error>;

const SECOND: &str = "second";

/// Pins this thread to the core of this number.
pub fn pin(core: &str) -> Result<(), Failure> {
    pin_to(core.parse()?).map_err(|e| format!("core {core}: {e}").into())
}

/// As [`pin`], with errors of the system.
pub fn pin_to(core: usize) -> Result<(), rustix::io::Errno> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL);
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
}

/// Arguments without the marker of the second process, and whether it was there.
pub fn split_role(args: &[String]) -> (&[String], bool) {
    match args {
        [args @ .., last] if last == SECOND => (args, true),
        args => (args, false),
    }
}

/// The other process.
pub struct PeerProcess {
    input: Box<dyn BufRead>,
    output: Box<dyn Write>,
    child: Option<Child>,
}

impl PeerProcess {
    /// The process that started this one.
    pub fn first() -> PeerProcess {
        let (input, output) = (BufReader::new(std::io::stdin()), std::io::stdout());
        PeerProcess { input: Box::new(input), output: Box::new(output), child: None }
    }

    /// Starts the second process with the arguments of this one.
    pub fn second(args: &[String]) -> Result<PeerProcess, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .arg(SECOND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(output), Some(input)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        Ok(PeerProcess {
            input: Box::new(BufReader::new(input)),
            output: Box::new(output),
            child: Some(child),
        })
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(self.output, "{text}")?;
        Ok(self.output.flush()?)
    }

    /// Waits for bytes.
    pub fn recv(&mut self) -> Result<Vec<u8>, Failure> {
        let mut text = String::new();
        if self.input.read_line(&mut text)? == 0 {
            return Err("the other process is gone".into());
        }
        let pairs = text.trim().as_bytes().chunks_exact(2);
        Ok(pairs
            .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16))
            .collect::<Result<_, _>>()?)
    }

    /// For the second process: a receiver that becomes ready when the first calls [`done`](Self::done).
    pub fn end_signal(mut self) -> Receiver<()> {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_line(&mut String::new());
            let _ = tell.send(());
        });
        let _ = self.output.flush();
        told
    }

    /// Ends the second process and waits for it.
    pub fn done(mut self) -> Result<(), Failure> {
        self.send(&[])?;
        match self.child.as_mut().map(Child::wait).transpose()? {
            Some(status) if !status.success() => Err(format!("the other process: {status}").into()),
            _ => Ok(()),
        }
    }
}
