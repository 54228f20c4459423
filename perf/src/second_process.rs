//! A second process of a measuring program: itself once more, with the word `second` behind its arguments; the two speak in
//! lines of hexadecimal. Used by `scale` and `ucp_bench`. Measures nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Why a measuring program fails: for its one line on standard error.
pub type Failure = Box<dyn std::error::Error>;

/// The last argument of the second process.
const SECOND: &str = "second";

/// Keeps this thread on a core, by its number.
pub fn pin(core: &str) -> Result<(), Failure> {
    pin_to(core.parse()?).map_err(|e| format!("core {core}: {e}").into())
}

/// The same.
pub fn pin_to(core: usize) -> Result<(), rustix::io::Errno> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL);
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
}

/// The arguments, without the word that makes this the second process, and whether it was there.
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
    /// The one that has started this one.
    pub fn first() -> PeerProcess {
        let (input, output) = (BufReader::new(std::io::stdin()), std::io::stdout());
        PeerProcess { input: Box::new(input), output: Box::new(output), child: None }
    }

    /// Starts the second one, with the arguments of this.
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

    /// In the second process, for a loop that progresses until the first has what it wants.
    pub fn end_signal(mut self) -> Receiver<()> {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_line(&mut String::new());
            let _ = tell.send(());
        });
        let _ = self.output.flush();
        told
    }

    /// Lets the second process end.
    pub fn done(mut self) -> Result<(), Failure> {
        self.send(&[])?;
        match self.child.as_mut().map(Child::wait).transpose()? {
            Some(status) if !status.success() => Err(format!("the other process: {status}").into()),
            _ => Ok(()),
        }
    }
}
