//! Two processes that find each other over TCP, by hand, and talk over the transports of `UCX_TLS`.
//! ```text
//! cargo run -p ucp --example bootstrap                               # both ends, as two processes
//! cargo run -p ucp --example bootstrap -- listen 127.0.0.1:7472      # in one terminal
//! cargo run -p ucp --example bootstrap -- connect 127.0.0.1:7472     # in another
//! ```
//!
//! For programs that have a connection of their own, or exchange more than addresses: keys, sizes, versions.
//! One that only needs endpoints uses `Worker::listen` and `Worker::connect_to`: see the example `server`.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::Duration;

use ucp::{Address, Context, EpParams, TAG_MASK_FULL, Worker};

const GREETING: u64 = 1;
/// Longest address taken from the other side, bytes: it may be anybody.
const MAX_ADDRESS: u32 = 1 << 16;
/// Time that the other side has to say its address, and to take our greeting.
const PATIENCE: Duration = Duration::from_secs(10);

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [] => both(),
        ["listen", at] => listen(at),
        ["connect", to] => connect(to),
        _ => {
            Err("expected nothing, 'listen ADDRESS' or 'connect ADDRESS', such as listen 127.0.0.1:7472"
                .into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bootstrap: {e}");
            ExitCode::FAILURE
        }
    }
}

fn both() -> Outcome {
    let worker = Context::new()?.worker()?;
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let to = socket.local_addr()?.to_string();
    let mut other = Command::new(std::env::current_exe()?).args(["connect", &to]).spawn()?;
    let ended = say_hello(&worker, &socket.accept()?.0);
    if !other.wait()?.success() {
        return Err("the other process failed".into());
    }
    ended
}

fn listen(at: &str) -> Outcome {
    let worker = Context::new()?.worker()?;
    let socket = TcpListener::bind(at).map_err(|e| format!("{at}: {e}"))?;
    println!("listening at {}", socket.local_addr()?);
    say_hello(&worker, &socket.accept()?.0)
}

fn connect(to: &str) -> Outcome {
    let worker = Context::new()?.worker()?;
    say_hello(&worker, &TcpStream::connect(to).map_err(|e| format!("{to}: {e}"))?)
}

/// Exchanges addresses over `line`, and greetings over the transport.
fn say_hello(worker: &Worker, mut line: &TcpStream) -> Outcome {
    line.set_read_timeout(Some(PATIENCE))?;
    let ep = worker.connect(&exchange(worker, line)?, EpParams::default())?;
    let text = format!("hello from process {} over {}", std::process::id(), ep.protocols().transports()[0]);
    let greeting = worker.tag_recv(GREETING, TAG_MASK_FULL, Vec::with_capacity(100));
    ep.tag_send(GREETING, text.into_bytes()).wait().0?;
    let (status, bytes) = greeting.wait();
    status?;
    println!("process {} got: {}", std::process::id(), String::from_utf8_lossy(&bytes));
    ep.flush_within(PATIENCE).wait()?;
    // Nobody leaves before the other side has flushed too.
    line.write_all(&[1])?;
    line.read_exact(&mut [0])?;
    Ok(())
}

/// Sends our address and receives the other one: a length of four bytes and the bytes.
fn exchange(worker: &Worker, mut line: &TcpStream) -> Result<Address, Box<dyn Error>> {
    let ours = worker.address().pack();
    line.write_all(&(ours.len() as u32).to_le_bytes())?;
    line.write_all(&ours)?;
    let mut len = [0; 4];
    line.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_ADDRESS {
        return Err("what connects is not this program".into());
    }
    let mut theirs = vec![0; len as usize];
    line.read_exact(&mut theirs)?;
    Ok(Address::unpack(&theirs)?)
}
