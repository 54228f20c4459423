//! Counts the iterations of a test, and prints the figures so far now and then.
//! Used by the tests of both levels. Where the clock is read is the meter's.

use tools_common::meter::Meter;

/// The meter of a test, and what prints it.
pub struct IterationCounter<'a> {
    /// Counts.
    pub meter: Meter,
    show: &'a mut dyn FnMut(&mut Meter),
}

impl<'a> IterationCounter<'a> {
    /// Nothing is counted yet.
    pub fn new(show: &'a mut dyn FnMut(&mut Meter)) -> Self {
        IterationCounter { meter: Meter::new(), show }
    }

    /// Counting starts.
    pub fn start(&mut self) {
        self.meter.start();
    }

    /// One iteration of a ping-pong is over. HOT
    #[inline(always)]
    pub fn tick(&mut self) {
        self.meter.tick();
        if self.meter.is_report_due() {
            self.show();
        }
    }

    /// One iteration of a stream is over. HOT
    #[inline(always)]
    pub fn tick_stream(&mut self) {
        if self.meter.tick_stream() && self.meter.is_report_due() {
            self.show();
        }
    }

    #[cold]
    fn show(&mut self) {
        (self.show)(&mut self.meter);
    }
}
