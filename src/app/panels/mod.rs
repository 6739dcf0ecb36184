//! The parts of the window. Each reads the state, paints, and returns what was asked for.

mod compare;
mod deck;
mod settings;
mod text;
mod top;
mod voice;

pub use compare::show as compare;
pub use deck::show as deck;
pub use settings::show as settings;
pub use text::{EDITOR, show as text};
pub use top::{notices, show as top};
pub use voice::show as voice;
