//! The start of the examples' processes, which gives each the addresses of all. Under a launcher that speaks
//! PMIx (`mpirun`, `srun --mpi=pmix`) they are its processes, on its hosts, and its store has the addresses.
//! Else the example starts them itself and passes the addresses on, over sockets without a file; if one
//! fails, all end.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use ucs::sys::pmix::Pmix;

/// How an example ends.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Tells the program that it is a member: `SOCKET RANK SIZE`.
const PLACE: &str = "EXAMPLE_JOB";

const VALUE: u8 = 0;
const FAILED: u8 = 1;

/// This process among those of its job.
pub struct Job {
    /// Rank, from 0.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    exchange: Exchange,
}

/// How a process gives its values to the others.
enum Exchange {
    /// Through the first process.
    Sockets { stream: UnixStream, values: Receiver<Vec<u8>> },
    /// Through the launcher's store, so many times up to now.
    Launcher { pmix: Box<Pmix>, times: usize },
}

impl Job {
    /// Gives everybody `mine`; answers everybody's, by rank.
    #[allow(dead_code, reason = "some examples only need two processes")]
    pub fn gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        match &mut self.exchange {
            Exchange::Sockets { stream, values } => {
                write_frame(stream, VALUE, mine)?;
                let next = || values.recv().map_err(|_| "the job has ended".into());
                (0..self.size).map(|_| next()).collect()
            }
            Exchange::Launcher { pmix, times } => {
                let key = format!("example.{times}");
                *times += 1;
                pmix.put_bytes(&key, mine)?;
                // Behind the fence everybody's value is there.
                pmix.fence()?;
                (0..self.size as u32).map(|rank| Ok(pmix.get_bytes(rank, &key)?)).collect()
            }
        }
    }
}

/// Runs `work` in `size` processes; under a launcher in all that it has started, at most `max`.
pub fn run(size: usize, max: usize, work: impl FnOnce(&mut Job) -> Outcome) -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    let ended = match std::env::var(PLACE) {
        Ok(place) => member(&place, work),
        Err(_) if Pmix::is_there() => launched(max, work),
        Err(_) => first(size),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{name}: {e}");
            ExitCode::FAILURE
        }
    }
}

struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn first(size: usize) -> Outcome {
    let socket = format!("example-job-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?;
    let program = std::env::current_exe()?;
    let mut members = Members(Vec::new());
    for rank in 0..size {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).env(PLACE, format!("{socket} {rank} {size}"));
        members.0.push(command.spawn()?);
    }
    // A thread for each member, so that messages and exits are seen at once.
    let (tell, heard) = channel();
    let mut lines: Vec<Option<UnixStream>> = (0..size).map(|_| None).collect();
    listener.set_nonblocking(true)?;
    for _ in 0..size {
        let mut line = next(&listener, &mut members, &lines)?;
        let rank = usize::from(u16::from_le_bytes(read_array(&mut line)?));
        *lines.get_mut(rank).ok_or("another process has connected")? = Some(line.try_clone()?);
        let tell = tell.clone();
        thread::spawn(move || while tell.send((rank, read_frame(&mut line).ok())).is_ok_and(|()| true) {});
    }
    let mut values: Vec<Option<Vec<u8>>> = vec![None; size];
    let mut left = size;
    while left > 0 {
        match heard.recv()? {
            (rank, Some((VALUE, value))) => values[rank] = Some(value),
            (_, Some((_, why))) => return Err(String::from_utf8_lossy(&why).into()),
            (rank, None) if lines[rank].take().is_some() => {
                if !members.0[rank].wait()?.success() {
                    return Err(format!("process {rank} of {size} ended badly").into());
                }
                left -= 1;
            }
            _ => {}
        }
        if values.iter().all(Option::is_some) {
            for line in lines.iter_mut().flatten() {
                values.iter().flatten().try_for_each(|value| write_frame(line, VALUE, value))?;
            }
            values.fill(None);
        }
    }
    Ok(())
}

fn next(
    listener: &UnixListener,
    members: &mut Members,
    lines: &[Option<UnixStream>],
) -> Result<UnixStream, Box<dyn Error>> {
    loop {
        // Checked before accepting: an ended member has connected by now, or never will.
        let has_ended = |(child, line): (&mut Child, &Option<UnixStream>)| {
            line.is_none() && matches!(child.try_wait(), Ok(Some(_)))
        };
        let ended = members.0.iter_mut().zip(lines).position(has_ended);
        match (listener.accept(), ended) {
            (Ok((line, _)), _) => return Ok(line),
            (Err(e), _) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
            (Err(_), Some(rank)) => {
                return Err(format!("process {rank} of {} ended before it was there", lines.len()).into());
            }
            (Err(_), None) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn member(place: &str, work: impl FnOnce(&mut Job) -> Outcome) -> Outcome {
    let words: Vec<&str> = place.split(' ').collect();
    let [socket, rank, size] = words[..] else { return Err("no place in a job".into()) };
    let (rank, size) = (rank.parse::<u16>()?, size.parse()?);
    let mut line = UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket)?)?;
    line.write_all(&rank.to_le_bytes())?;
    let (tell, from) = channel();
    let mut reader = line.try_clone()?;
    thread::spawn(move || {
        while let Ok((_, value)) = read_frame(&mut reader) {
            if tell.send(value).is_err() {
                return;
            }
        }
        std::process::exit(1);
    });
    let mut to_first = line.try_clone()?;
    let mut job = Job { rank: rank.into(), size, exchange: Exchange::Sockets { stream: line, values: from } };
    let ended = work(&mut job);
    if let Err(e) = &ended {
        write_frame(&mut to_first, FAILED, e.to_string().as_bytes())?;
        std::process::exit(1);
    }
    ended
}

/// A process of a launcher. If it fails, `mpirun` ends the others, and `srun` does with `-K`.
fn launched(max: usize, work: impl FnOnce(&mut Job) -> Outcome) -> Outcome {
    let pmix = Pmix::init()?;
    let (rank, size) = (pmix.rank() as usize, pmix.size()? as usize);
    if !(2..=max).contains(&size) {
        let wanted = if max == 2 { "2".into() } else { format!("2 to {max}") };
        return Err(
            format!("this example is for {wanted} processes, and the launcher has started {size}").into()
        );
    }
    work(&mut Job { rank, size, exchange: Exchange::Launcher { pmix: Box::new(pmix), times: 0 } })
}

fn write_frame(line: &mut UnixStream, kind: u8, bytes: &[u8]) -> std::io::Result<()> {
    let mut frame = vec![kind];
    frame.extend((bytes.len() as u32).to_le_bytes());
    frame.extend(bytes);
    line.write_all(&frame)
}

fn read_frame(line: &mut UnixStream) -> std::io::Result<(u8, Vec<u8>)> {
    let [kind] = read_array(line)?;
    let mut bytes = vec![0; u32::from_le_bytes(read_array(line)?) as usize];
    line.read_exact(&mut bytes)?;
    Ok((kind, bytes))
}

fn read_array<const N: usize>(line: &mut UnixStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    line.read_exact(&mut bytes)?;
    Ok(bytes)
}
