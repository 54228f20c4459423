//! The engine as a whole: stages of each protocol one by one, whole conversations from seeds, hostile packets.

mod backoff;
mod beside;
mod classes;
mod direct;
mod errors;
mod flood;
mod headerless;
mod hostile;
mod matched;
mod onesided;
mod pieces;
mod rails;
mod reads;
mod scatter;
mod stages;
mod talk;
mod writeread;
