//! One end under the driver: a process that executes steps and prints lines. Killed when dropped. Lines that
//! nobody has asked for are kept.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::control::Line;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The stack that plays an end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Stack {
    /// This project's `ucp`.
    Ours,
    /// libfabric's EFA provider.
    Libfabric,
}

impl Stack {
    /// The other stack.
    pub fn other(self) -> Stack {
        match self {
            Stack::Ours => Stack::Libfabric,
            Stack::Libfabric => Stack::Ours,
        }
    }

    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Stack::Ours => "ours",
            Stack::Libfabric => "libfabric",
        }
    }
}

/// An end's process failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program cannot be started.
    #[error("{program} cannot be started: {why}")]
    Start {
        /// The program.
        program: String,
        /// The system's reason.
        why: String,
    },
    /// The process has ended by itself.
    #[error("{} has died", .0.name())]
    Died(Stack),
    /// An expected line did not come.
    #[error("{}: nothing heard of {what} in {TIMEOUT:?}", .who.name())]
    Silent {
        /// The stack.
        who: Stack,
        /// The step or operation.
        what: String,
    },
    /// A step was refused.
    #[error("{}: {step}: {answer}", .who.name())]
    Refused {
        /// The stack.
        who: Stack,
        /// The step.
        step: String,
        /// The answer.
        answer: String,
    },
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This program, which plays the native end when called with `play`.
    pub native: PathBuf,
    /// The launcher of programs on the software device.
    pub softefa: PathBuf,
    /// The C program.
    pub peer: PathBuf,
    /// Folder of this project's libfabric provider: our end is the C program, too, with that provider.
    pub provider: Option<PathBuf>,
    /// Working directory of the C program, for backtraces.
    pub scratch: PathBuf,
    /// Command that starts libfabric's end on another host; empty: on this one.
    pub launcher: Vec<String>,
    /// Settings of both ends, beside those of the matrix.
    pub settings: Vec<(String, String)>,
}

/// A process that plays one end.
pub struct EndProcess {
    who: Stack,
    child: Child,
    steps: ChildStdin,
    lines: Receiver<Line>,
    early: VecDeque<Line>,
}

impl EndProcess {
    /// Starts an end with `settings` in its environment and no other settings of ours or libfabric's.
    pub fn start(
        who: Stack,
        programs: &Programs,
        settings: &[(String, String)],
    ) -> Result<EndProcess, ProcessError> {
        let mut command = command_of(who, programs);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["UCX_", "SOFTEFA_", "FI_"].iter().any(|p| text.starts_with(p)) {
                command.env_remove(&name);
            }
        }
        if who == Stack::Ours {
            command.env("UCX_TLS", "efa");
            if let Some(folder) = &programs.provider {
                command.env("FI_PROVIDER_PATH", folder).env("PEER_PROVIDER", "efa4");
            }
            // The matrix has each protocol where libfabric has it, whatever would be faster.
            let borders = [("READ", "1m"), ("READ_WRITE", "64k"), ("RDMA_PUT", "0"), ("RDMA_GET", "0")];
            command.envs(borders.map(|(of, from)| (format!("UCX_MIN_{of}"), from)));
        }
        let vars = programs.settings.iter().chain(settings).map(|(key, value)| (key, value));
        let started = command.envs(vars).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child =
            started.map_err(|e| ProcessError::Start { program: program.clone(), why: e.to_string() })?;
        let (Some(steps), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProcessError::Start { program, why: "no pipes".into() });
        };
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let all = BufReader::new(stdout).lines().map_while(Result::ok);
            all.map(Line::new).take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        });
        Ok(EndProcess { who, child, steps, lines, early: VecDeque::new() })
    }

    /// The stack that plays it.
    pub fn who(&self) -> Stack {
        self.who
    }

    fn hear(&mut self, until: Instant, what: &str) -> Result<Line, ProcessError> {
        let left = until.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Timeout => ProcessError::Silent { who: self.who, what: what.into() },
            RecvTimeoutError::Disconnected => ProcessError::Died(self.who),
        })
    }

    /// Executes a step; answers the line that ends it, which begins with `ok`.
    pub fn step(&mut self, step: &str) -> Result<Line, ProcessError> {
        let sent = self.steps.write_all(format!("{step}\n").as_bytes());
        sent.map_err(|_| ProcessError::Died(self.who))?;
        let until = Instant::now() + TIMEOUT;
        loop {
            let line = self.hear(until, step)?;
            match line.word(0) {
                Some("ok") => return Ok(line),
                Some("no") => {
                    let (who, step, answer) = (self.who, step.into(), line.text().into());
                    return Err(ProcessError::Refused { who, step, answer });
                }
                _ => self.early.push_back(line),
            }
        }
    }

    /// Waits for the next line about operation `id`: `done ...` or `fail ...`.
    pub fn ended(&mut self, id: &str) -> Result<Line, ProcessError> {
        let about = |line: &Line| line.word(1) == Some(id);
        if let Some(at) = self.early.iter().position(about)
            && let Some(line) = self.early.remove(at)
        {
            return Ok(line);
        }
        let until = Instant::now() + TIMEOUT;
        loop {
            let line = self.hear(until, &format!("operation {id}"))?;
            if about(&line) {
                return Ok(line);
            }
            self.early.push_back(line);
        }
    }

    /// Whether a line about operation `id` has come.
    pub fn has_ended(&mut self, id: &str) -> bool {
        self.early.extend(self.lines.try_iter());
        self.early.iter().any(|line| line.word(1) == Some(id))
    }

    /// The lines that nobody has asked for, in order.
    pub fn unclaimed_lines(&mut self) -> Vec<Line> {
        self.early.extend(self.lines.try_iter());
        self.early.drain(..).collect()
    }

    /// Ends the process as an application would.
    pub fn quit(mut self) -> Result<(), ProcessError> {
        let sent = self.steps.write_all(b"quit\n");
        sent.map_err(|_| ProcessError::Died(self.who))?;
        let until = Instant::now() + TIMEOUT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) | Err(_) => return Err(ProcessError::Died(self.who)),
                Ok(None) if Instant::now() > until => {
                    return Err(ProcessError::Silent { who: self.who, what: "its end".into() });
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

/// The program that plays an end.
fn command_of(who: Stack, programs: &Programs) -> Command {
    let program = match (who, &programs.provider) {
        (Stack::Ours, None) => &programs.native,
        (Stack::Ours, Some(_)) => &programs.peer,
        (Stack::Libfabric, _) => &programs.softefa,
    };
    let mut command = match (who, &programs.launcher[..]) {
        (Stack::Libfabric, [launcher, rest @ ..]) => {
            let mut command = Command::new(launcher);
            command.args(rest).arg(program);
            command
        }
        _ => Command::new(program),
    };
    match (who, &programs.provider) {
        (Stack::Ours, None) => _ = command.arg("play"),
        (Stack::Ours, Some(_)) => _ = command.current_dir(&programs.scratch),
        (Stack::Libfabric, _) => {
            command.args(["run", "--"]).arg(&programs.peer).current_dir(&programs.scratch);
        }
    }
    command
}

impl Drop for EndProcess {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // The launcher passes a TERM on to the program; a KILL would leave the program behind.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
