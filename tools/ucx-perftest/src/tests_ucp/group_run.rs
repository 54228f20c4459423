//! Runs a test with `--pattern` on one member of a group: connects to all others, then calls the loop of the
//! test.

use std::rc::Rc;

use tools_common::boot::HexBytes;
use tools_common::meter::Meter;
use ucp::Ep;
use ucs::config::Source;

use super::group_rma::{self, GroupMemory};
use super::group_test::GroupTest;
use super::setup::{connect, message_path, open, tag_path};
use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Link;
use crate::report::{Report, TestResult};
use crate::spec::{Pattern, Spec};

pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<TestResult, Failure> {
    let (me, size) = (link.rank(), link.size());
    let opened = open(spec, source);
    let mine = opened
        .as_ref()
        .map(|w| HexBytes(w.address().pack()))
        .map_err(|e| Failure::Unsupported(e.to_string()));
    let all = link.allgather_result(mine)?;
    let worker = opened?;
    let one = |(n, to): (usize, &HexBytes)| (n != me).then(|| connect(spec, &worker, to)).transpose();
    let connected: Result<Vec<Option<Ep>>, Failure> = all.iter().enumerate().map(one).collect();
    link.allgather_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let eps = Rc::new(connected?);
    let mut path = eps.iter().flatten().next().map(|ep| tag_path(spec, &worker, ep)).unwrap_or_default();
    let memory = match spec.test.is_ucp_rma() {
        true => Some(group_rma::exchange(spec, &worker, &eps, link)?),
        false => None,
    };
    if spec.test.is_am_or_stream() {
        path.data_path = message_path(spec).into();
    }
    if let Some(memory) = &memory {
        path.data_path = memory.data_path(spec, &eps).into();
    }
    let others = || (0..size).filter(|n| *n != me);
    let (targets, sources): (Vec<usize>, Vec<usize>) = match (spec.pattern, me) {
        (Pattern::Incast, 0) => (Vec::new(), others().collect()),
        (Pattern::Incast, _) => (vec![0], Vec::new()),
        _ => (others().collect(), others().collect()),
    };
    let mut show = |meter: &mut Meter| report.progress(spec, &path, meter.read(spec.rank));
    let (backoff, counter) = (Backoff::new(link), IterationCounter::new(&mut show));
    let deltas = vec![0; size];
    let mut test = GroupTest { spec, link, worker, eps, targets, sources, counter, backoff, deltas };
    if spec.warmup > 0 {
        test.counter.set_warm_up(true);
        measure(&mut test, memory.as_ref(), spec.warmup, me)?;
        test.counter.set_warm_up(false);
    }
    measure(&mut test, memory.as_ref(), spec.iters, me)?;
    let meter = &mut test.counter.meter;
    let (reading, hist) = (meter.read(spec.rank), Report::histogram(spec, meter));
    let done = TestResult::new(spec, path.clone(), reading, hist);
    test.barrier()?;
    Ok(done)
}

fn measure(
    test: &mut GroupTest<'_>,
    memory: Option<&GroupMemory>,
    iters: u64,
    me: usize,
) -> Result<(), Failure> {
    let operations_each = |targets: usize| (iters / targets.max(1) as u64).max(1);
    let each = operations_each(test.targets.len());
    let from_each =
        operations_each(if test.spec.pattern == Pattern::AllToAll { test.link.size() - 1 } else { 1 });
    if let Some(memory) = memory {
        return test.rma(memory, each, from_each, me);
    }
    if test.spec.test.is_am_or_stream() {
        return test.messages(each, from_each, me);
    }
    test.tagged(each, from_each, me)
}
