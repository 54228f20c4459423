//! Bounds the rate of log lines: so many of each cause a second. What is left out is counted, and the count
//! is logged with the next line.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct Period {
    start: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Period {
    /// `None`: the line is left out. Else the number of lines left out before it.
    fn admit(&mut self, most: u32, now: Instant) -> Option<u64> {
        let mut left_out = 0;
        if self.has_ended(now) {
            left_out = self.left_out;
            *self = Period { start: Some(now), ..Period::default() };
        }
        if self.lines == most {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(left_out)
    }

    fn has_ended(&self, now: Instant) -> bool {
        self.start.is_none_or(|start| now.saturating_duration_since(start) >= PERIOD)
    }
}

/// A bound on the lines of one cause.
#[derive(Debug)]
pub struct RateLimit {
    most: u32,
    period: Mutex<Period>,
}

impl RateLimit {
    /// Admits `most` lines a second, at least one.
    pub fn new(most: u32) -> RateLimit {
        RateLimit { most: most.max(1), period: Mutex::default() }
    }

    /// Whether a line may be written now, and how many were left out before it; `None` counts it as left out.
    pub fn admit(&self) -> Option<u64> {
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        period.admit(self.most, Instant::now())
    }
}

/// A format that bounds errors and warnings. The cause of a line is the place in the source that logs it.
pub(super) struct Limited<F> {
    inner: F,
    /// 0: no bound.
    most: u32,
    causes: Mutex<HashMap<Identifier, (&'static Metadata<'static>, Period)>>,
}

impl<F> Limited<F> {
    pub(super) fn new(inner: F, most: u32) -> Limited<F> {
        Limited { inner, most, causes: Mutex::default() }
    }

    /// Whether a line may be written, after a line about each cause whose period has ended with lines left
    /// out.
    fn admit(&self, cause: &'static Metadata<'static>, writer: &mut Writer<'_>) -> Result<bool, fmt::Error> {
        let now = Instant::now();
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        for (of, period) in causes.values_mut().filter(|(_, period)| period.left_out > 0) {
            if period.has_ended(now) {
                report_left_out(writer, of, period.left_out)?;
                *period = Period::default();
            }
        }
        let (_, period) = causes.entry(cause.callsite()).or_insert((cause, Period::default()));
        Ok(period.admit(self.most, now).is_some())
    }
}

fn report_left_out(writer: &mut Writer<'_>, of: &Metadata<'_>, left_out: u64) -> fmt::Result {
    let (level, target) = (of.level(), of.target());
    let (file, line) = (of.file().unwrap_or("?"), of.line().unwrap_or(0));
    writeln!(
        writer,
        "{level:>5} {target}: {left_out} more lines of {file}:{line} were left out (UCX_LOG_RATE)"
    )
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let cause = event.metadata();
        // What a program asks for by a level below is not bounded.
        let bounded = self.most > 0 && *cause.level() <= Level::WARN;
        if bounded && !self.admit(cause, &mut writer)? {
            return Ok(());
        }
        self.inner.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_period_admits_so_many_and_counts_the_rest() {
        let (mut period, start) = (Period::default(), Instant::now());
        let admitted: Vec<_> = (0..5).map(|_| period.admit(2, start)).collect();
        assert_eq!(admitted, [Some(0), Some(0), None, None, None]);
        assert_eq!(period.admit(2, start + PERIOD), Some(3));
        assert_eq!(period.admit(2, start + PERIOD), Some(0));
        assert_eq!(period.admit(2, start + PERIOD), None);
    }

    #[test]
    fn lines_of_one_cause_are_bounded() {
        let text = Text::default();
        let writer = text.clone();
        let format = Limited::new(tracing_subscriber::fmt::format().without_time().with_ansi(false), 3);
        let subscriber = tracing_subscriber::fmt::Subscriber::builder()
            .with_max_level(Level::INFO)
            .with_writer(move || writer.clone())
            .event_format(format)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for round in 0..2 {
                (0..100).for_each(|n| tracing::error!("cause {n}"));
                (0..5).for_each(|n| tracing::info!("asked for {n}"));
                tracing::warn!("another {round}");
                std::thread::sleep(PERIOD);
            }
            tracing::warn!("last");
        });
        let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!((count("cause "), count("asked for"), count("another")), (6, 10, 2), "{text}");
        assert_eq!(count(": 97 more lines of "), 2, "{text}");
    }
}
