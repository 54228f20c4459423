//! A server for many clients that know its socket address only: it answers each line in capital letters.
//! ```text
//! cargo run -p ucp --example server                               # a server, and 4 clients that it starts
//! cargo run -p ucp --example server -- serve 127.0.0.1:7471       # until it is killed
//! cargo run -p ucp --example server -- client 127.0.0.1:7471 hello
//! ```
//!
//! TCP carries the exchange of addresses. Lines and answers are active messages over the transports that
//! `UCX_TLS` allows.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode};
use std::rc::Rc;

use ucp::{CloseMode, ConnRequest, ConnectParams, Context, Ep, EpParams, ErrorMode, Worker};

/// Active messages: a line of a client, the answer, and a client's farewell.
const LINE: u16 = 1;
const ANSWER: u16 = 2;
const BYE: u16 = 3;

/// Clients of a server that starts them itself.
const CLIENTS: usize = 4;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [] => serve_own_clients(),
        ["serve", addr] => serve_at(addr),
        ["client", addr, text] => ask(addr, text),
        _ => {
            Err("expected nothing, 'serve ADDRESS' or 'client ADDRESS TEXT', such as serve 127.0.0.1:7471"
                .into())
        }
    };
    done.map_or_else(
        |e| {
            eprintln!("server: {e}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// A service: the endpoints of its clients, by peer.
#[derive(Default)]
struct Service {
    clients: RefCell<HashMap<ucp::PeerId, Ep>>,
    served: Cell<usize>,
}

impl Service {
    /// Answers the messages of accepted clients.
    fn start(worker: &Worker) -> Rc<Service> {
        let service = Rc::new(Service::default());
        let here = service.clone();
        worker.set_am_handler(LINE, move |message| {
            // A line that fits a packet is here in whole; this service takes no others.
            let text = message.data().map(|line| String::from_utf8_lossy(line).to_uppercase());
            if let (Some(text), Some(ep)) = (text, here.clients.borrow().get(&message.from())) {
                ep.am_send(ANSWER, &[], text.into_bytes()).detach();
            }
        });
        let here = service.clone();
        worker.set_am_handler(BYE, move |message| {
            here.served.set(here.served.get() + 1);
            here.clients.borrow_mut().remove(&message.from());
        });
        service
    }

    /// Accepts a client.
    fn accept(&self, worker: &Worker, request: ConnRequest) {
        let from = request.peer_addr();
        let errors = ErrorMode::Peer(Box::new(move |error| eprintln!("server: client at {from}: {error}")));
        match worker.accept(request, EpParams { errors, ..EpParams::default() }) {
            Ok(ep) => drop(self.clients.borrow_mut().insert(ep.peer(), ep)),
            Err(error) => eprintln!("server: client at {from}: {error}"),
        }
    }
}

/// Serves at `addr` until `is_over`, which is asked after each sleep.
fn serve(
    addr: SocketAddr,
    mut is_over: impl FnMut(SocketAddr, usize) -> Result<bool, Box<dyn Error>>,
) -> Outcome {
    let worker = Context::new()?.worker()?;
    let service = Service::start(&worker);
    let (here, on) = (service.clone(), worker.clone());
    let listener = worker.listen(addr, move |request| here.accept(&on, request))?;
    while !is_over(listener.local_addr(), service.served.get())? {
        while worker.progress() > 0 {}
        worker.wait(Some(std::time::Duration::from_millis(100)))?;
    }
    // The handlers and the callback hold the worker.
    worker.clear_am_handler(LINE);
    worker.clear_am_handler(BYE);
    Ok(())
}

fn serve_at(addr: &str) -> Outcome {
    let mut is_told = false;
    serve(parse(addr)?, |addr, _| {
        if !std::mem::replace(&mut is_told, true) {
            println!("serving at {addr}");
        }
        Ok(false)
    })
}

fn serve_own_clients() -> Outcome {
    let mut clients: Vec<Child> = Vec::new();
    let ended = serve(parse("127.0.0.1:0")?, |addr, served| {
        if clients.is_empty() {
            let program = std::env::current_exe()?;
            for n in 0..CLIENTS {
                let text = format!("hello from client {n}");
                clients.push(Command::new(&program).args(["client", &addr.to_string(), &text]).spawn()?);
            }
        }
        for client in &mut clients {
            if client.try_wait()?.is_some_and(|status| !status.success()) {
                return Err("a client failed".into());
            }
        }
        Ok(served == CLIENTS)
    });
    for client in &mut clients {
        if ended.is_err() {
            let _ = client.kill();
        }
        client.wait()?;
    }
    ended?;
    println!("served {CLIENTS} clients");
    Ok(())
}

fn parse(addr: &str) -> Result<SocketAddr, String> {
    addr.parse().map_err(|e| format!("{addr}: {e}"))
}

/// A client: sends a line as soon as it has asked to be connected, and prints the answer.
fn ask(addr: &str, text: &str) -> Outcome {
    let worker = Context::new()?.worker()?;
    let answer: Rc<RefCell<Option<String>>> = Rc::default();
    let to = answer.clone();
    worker.set_am_handler(ANSWER, move |message| {
        let text = message.data().map(|text| String::from_utf8_lossy(text).into_owned());
        *to.borrow_mut() = text;
    });
    let ep = worker.connect_to(parse(addr)?, ConnectParams::default())?;
    // The line waits until the server has accepted. If it does not, the send says why.
    ep.am_send(LINE, &[], text.as_bytes().to_vec()).wait().0?;
    while answer.borrow().is_none() {
        worker.progress();
    }
    println!("{}", answer.take().unwrap_or_default());
    ep.am_send(BYE, &[], Vec::new()).detach();
    ep.close(CloseMode::Flush(std::time::Duration::from_secs(10))).wait()?;
    Ok(())
}
