//! The engine's thread: receives commands, runs one job at a time, reports events.

use crossbeam_channel::{Receiver, Sender};

use crate::protocol::{Command, Event};

/// A handle on the engine: send commands, drain events.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Where commands go.
    pub commands: Sender<Command>,
    /// Where events come from.
    pub events: Receiver<Event>,
}
