//! Tasks of tokio that share a worker: one asks, one waits in vain and gives up, one makes progress.
//! `cargo run -p ucp --example tokio_tasks`
//!
//! Requests are futures. A task of its own progresses the worker and sleeps on its descriptor otherwise: what
//! other tasks begin meanwhile wakes it if it has to wait. Dropping a future that has not ended cancels it.

use std::error::Error;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::task::{LocalSet, spawn_local};
use ucp::{Address, Context, Ep, EpParams, TAG_MASK_FULL, Worker};

const QUESTION: u64 = 1;
const ANSWER: u64 = 2;
/// A message that nobody sends.
const NEVER: u64 = 3;
const QUESTIONS: u32 = 1000;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    match ask() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tokio_tasks: {e}");
            ExitCode::FAILURE
        }
    }
}

/// This thread asks, another one answers. Each has a worker and a runtime.
fn ask() -> Outcome {
    let worker = Context::new()?.worker()?;
    let (to_other, from_us) = channel();
    let (to_us, from_other) = channel();
    let other = thread::spawn(move || answer(&to_us, &from_us).map_err(|e| e.to_string()));
    let ep = Rc::new(connect(&worker, &to_other, &from_other)?);
    block_on(&worker, async {
        let asking = spawn_local(ask_all(worker.clone(), ep.clone()));
        let giving_up = spawn_local(wait_in_vain(worker.clone()));
        asking.await??;
        giving_up.await?;
        println!("{QUESTIONS} questions answered over {}", ep.protocols().transports()[0]);
        Outcome::Ok(())
    })?;
    other.join().map_err(|_| "the other thread panicked")??;
    Ok(())
}

async fn ask_all(worker: Worker, ep: Rc<Ep>) -> Result<(), ucp::Error> {
    for n in 0..QUESTIONS {
        let answer = worker.tag_recv(ANSWER, TAG_MASK_FULL, Vec::with_capacity(4));
        ep.tag_send(QUESTION, n.to_le_bytes().to_vec()).await.0?;
        let (status, bytes) = answer.await;
        status?;
        assert_eq!(bytes, n.to_le_bytes(), "the answer is the question");
    }
    Ok(())
}

async fn wait_in_vain(worker: Worker) {
    let message = worker.tag_recv(NEVER, TAG_MASK_FULL, Vec::with_capacity(4));
    match tokio::time::timeout(Duration::from_millis(50), message).await {
        // The receive has been cancelled and its buffer freed.
        Err(_) => println!("a receive was given up after 50 ms"),
        Ok((status, _)) => println!("an unexpected end: {status:?}"),
    }
}

fn answer(to: &Sender<Vec<u8>>, from: &Receiver<Vec<u8>>) -> Outcome {
    let worker = Context::new()?.worker()?;
    let ep = connect(&worker, to, from)?;
    block_on(&worker, async {
        for _ in 0..QUESTIONS {
            let (status, bytes) = worker.tag_recv(QUESTION, TAG_MASK_FULL, Vec::with_capacity(4)).await;
            status?;
            ep.tag_send(ANSWER, bytes).await.0?;
        }
        Ok(ep.flush().await?)
    })
}

fn connect(worker: &Worker, to: &Sender<Vec<u8>>, from: &Receiver<Vec<u8>>) -> Result<Ep, Box<dyn Error>> {
    to.send(worker.address().pack())?;
    Ok(worker.connect(&Address::unpack(&from.recv()?)?, EpParams::default())?)
}

/// Runs tasks of this thread, and one that progresses the worker.
fn block_on(worker: &Worker, work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let driver = tasks.spawn_local(drive(worker.clone()));
    tasks.block_on(&runtime, async {
        tokio::pin!(work);
        tokio::pin!(driver);
        // The driver ends with an error only.
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(failed) = driver.as_mut().poll(cx) {
                return std::task::Poll::Ready(
                    failed.unwrap_or_else(|e| Err(e.to_string())).map_err(Into::into),
                );
            }
            work.as_mut().poll(cx)
        })
        .await
    })
}

/// Progresses the worker; sleeps until its descriptor says that there is something to do.
async fn drive(worker: Worker) -> Result<(), String> {
    let events = worker.event_source().map_err(|e| e.to_string())?.ok_or("a transport has no descriptor")?;
    // SAFETY: the owner has this descriptor, valid and the same, until it is dropped.
    let events = unsafe { AsyncFd::register(events) }.map_err(|e| e.to_string())?;
    loop {
        while worker.progress() > 0 || !worker.arm() {
            tokio::task::yield_now().await;
        }
        events.readable().await.map_err(|e| e.to_string())?.clear_ready();
    }
}
