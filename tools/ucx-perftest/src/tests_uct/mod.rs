//! Low-level tests: one transport on one device. Called by `session` on all sides with the same [`Spec`];
//! exchanges addresses and keys, warms up, measures.

mod am;
mod amo;
mod context;
mod group_test;
mod layout;
mod memory;
mod open;
mod rma;
mod setup;

use tools_common::boot::HexBytes;
use tools_common::meter::Meter;
use ucs::config::Source;
use uct::api::{DevKind, Iface, Md};

use crate::fail::Failure;
use crate::link::{Link, Side};
use crate::report::{Report, TestResult, UsedTransport};
use crate::spec::{Layout, Passive, Pattern, Spec, Target, Test, Validate};
use context::{ContextParts, TestContext};
use memory::RegisteredMemory;
use setup::Setup;

/// Runs one test; the result counts on the active side.
pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<TestResult, Failure> {
    // `Spec::check` requires the name.
    let tl = spec.tl.as_deref().unwrap_or_default();
    let mut answered = false;
    let job = Job { spec, link, report, answered: &mut answered };
    let result = open::resolve(tl, spec.dev.as_deref(), source)
        .and_then(|(tl, dev)| open::with_iface(tl, &dev, spec.level, source, job));
    match result {
        // The other side waits for an answer even if nothing could be opened here.
        Err(e) if !answered => {
            link.exchange_result::<Setup>(Err(e)).and(Err(Failure::Run("nothing to run".into())))
        }
        result => result,
    }
}

struct Job<'a> {
    spec: &'a Spec,
    link: &'a mut Link,
    report: &'a Report,
    answered: &'a mut bool,
}

impl open::Job for Job<'_> {
    type Out = TestResult;

    fn run<I: Iface>(self, iface: I) -> Result<TestResult, Failure> {
        let Job { spec, link, report, answered } = self;
        let attr = iface.attr();
        if attr.kind == DevKind::Loopback && link.side() != Side::Both {
            let text = format!(
                "transport '{}' reaches its own thread only: use -l, with -T for several threads",
                attr.tl
            );
            return Err(Failure::Usage(text));
        }
        if spec.pattern != Pattern::Pairs {
            *answered = true;
            return group_test::run(spec, &iface, link, report);
        }
        let attr = attr.clone();
        let prepared = prepare(spec, &iface);
        *answered = true;
        let (mine, memory) = match prepared {
            Ok((setup, memory)) => (Ok(setup), Some(memory)),
            Err(e) => (Err(e), None),
        };
        let theirs = link.exchange_result(mine)?;
        let Some(TestMemory { layout, target, source }) = memory else {
            return Err(Failure::Run("not prepared".into()));
        };
        let connected = connect(spec, &iface, &theirs);
        let agreed =
            link.exchange_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())));
        agreed?;
        let (ep, rkey) = connected?;
        let path =
            UsedTransport { transport: attr.tl.into(), device: attr.dev, data_path: layout.name().into() };
        let rank = spec.rank;
        let mut show = |meter: &mut Meter| {
            let reading = meter.read(rank);
            report.progress(spec, &path, scale(spec, reading));
        };
        let mut quiet = |meter: &mut Meter| _ = meter.read(rank);
        let side = link.side();
        let mut ctx = TestContext::new(ContextParts {
            spec,
            iface: &iface,
            ep,
            link,
            target: &target,
            source: &source,
            remote: (theirs.addr, rkey),
            show: if side.is_active() { &mut show } else { &mut quiet },
        });
        if spec.warmup > 0 {
            ctx.counter.set_warm_up(true);
            measure(&mut ctx, layout, spec.warmup)?;
            ctx.counter.set_warm_up(false);
        }
        measure(&mut ctx, layout, spec.iters)?;
        let (reading, hist) =
            (scale(spec, ctx.counter.meter.read(rank)), Report::histogram(spec, &ctx.counter.meter));
        let done = TestResult::new(spec, path.clone(), reading, hist);
        finish(&mut ctx)?;
        [&target, &source].into_iter().for_each(RegisteredMemory::mark_ended);
        Ok(done)
    }
}

fn scale(spec: &Spec, reading: tools_common::meter::Reading) -> tools_common::meter::Reading {
    match spec.test {
        Test::AmLat | Test::PutLat | Test::AddLat => reading.halved(),
        _ => reading,
    }
}

struct TestMemory<M: Md> {
    layout: Layout,
    target: RegisteredMemory<M>,
    source: RegisteredMemory<M>,
}

fn prepare<I: Iface>(spec: &Spec, iface: &I) -> Result<(Setup, TestMemory<I::Md>), Failure> {
    let attr = iface.attr();
    let layout = layout::select(spec, attr)?;
    let (md, size) = (iface.md(), spec.size());
    let slots = spec.window as usize;
    let all = spec
        .span()
        .checked_mul(slots)
        .ok_or_else(|| Failure::Unsupported("-s and -O: too much memory".into()))?;
    let checked = spec.validate == Validate::Yes;
    let needs_key = !matches!(spec.test, Test::AmLat | Test::AmBw | Test::AmMr);
    // Memory that nobody accesses need not be the program's own.
    let whose = if needs_key { spec.target } else { Target::Allocated };
    let all_rounds = spec.test == Test::PutBw && checked;
    let target = RegisteredMemory::new(md, if all_rounds { all } else { size }, whose, spec.pages)?;
    let source =
        RegisteredMemory::new(md, if layout == Layout::Zcopy { all } else { 0 }, spec.target, spec.pages)?;
    let rkey = if needs_key || md.attr().has_rkey { target.rkey(md)? } else { Default::default() };
    let setup = Setup {
        device: HexBytes(iface.device_addr().to_vec()),
        iface: HexBytes(iface.iface_addr().to_vec()),
        rkey: HexBytes(rkey.to_vec()),
        addr: target.addr(),
    };
    Ok((setup, TestMemory { layout, target, source }))
}

type Connected<I> = (<I as Iface>::Ep, <<I as Iface>::Md as Md>::Rkey);

fn connect<I: Iface>(spec: &Spec, iface: &I, theirs: &Setup) -> Result<Connected<I>, Failure> {
    let ep = iface.connect(&theirs.device.0, &theirs.iface.0)?;
    let rkey = iface
        .md()
        .unpack_rkey(&theirs.rkey.0)
        .map_err(|e| Failure::Run(format!("{}: cannot use the other side's key: {e}", spec.test.name())))?;
    Ok((ep, rkey))
}

/// One pass over a test's loop. All sides are ready at its start and done at its end.
fn measure<I: Iface>(ctx: &mut TestContext<'_, I>, layout: Layout, iters: u64) -> Result<(), Failure> {
    match ctx.spec.test {
        Test::AmLat => am::lat(ctx, layout, iters),
        Test::AmBw | Test::AmMr => am::stream(ctx, layout, iters),
        Test::PutLat => rma::put_lat(ctx, layout, iters),
        Test::PutBw => rma::put_bw(ctx, layout, iters),
        Test::Get | Test::GetBw => rma::get(ctx, layout, iters),
        Test::AddLat => amo::add_lat(ctx, iters),
        Test::AddMr => amo::add_mr(ctx, iters),
        Test::Fadd | Test::Swap | Test::Cswap => amo::fetch(ctx, iters),
        _ => Err(Failure::Run("a high-level test on a transport".into())),
    }
}

/// Completes all operations, and waits until the other side has too.
fn finish<I: Iface>(ctx: &mut TestContext<'_, I>) -> Result<(), Failure> {
    ctx.flush()?;
    match ctx.spec.passive {
        Passive::Idle if !ctx.side.is_active() => ctx.barrier_idle(),
        _ => ctx.last_barrier(),
    }
}
