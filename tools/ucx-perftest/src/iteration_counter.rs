//! Counts the iterations of a test, and prints figures about once a second.

use tools_common::meter::Meter;

pub struct IterationCounter<'a> {
    pub meter: Meter,
    show: &'a mut dyn FnMut(&mut Meter),
}

impl<'a> IterationCounter<'a> {
    pub fn new(show: &'a mut dyn FnMut(&mut Meter)) -> Self {
        IterationCounter { meter: Meter::new(), show }
    }

    pub fn start(&mut self) {
        self.meter.start();
    }

    /// Counts one iteration of a ping-pong. HOT
    #[inline(always)]
    pub fn tick(&mut self) {
        self.meter.tick();
        if self.meter.is_report_due() {
            self.show();
        }
    }

    /// Counts one iteration of a stream. HOT
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
