//! How soon the window is painted again: never later than is seen, and never so often that drawing keeps the engine waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use eframe::glow::{self, HasContext as _};

/// How often the picture moves while something plays, at most.
const FRAME: Duration = Duration::from_millis(16);
/// The same until there is sound: nothing moves, and where the processor draws, each frame would delay the sound.
const WAITING: Duration = Duration::from_millis(150);
/// How often a picture that waits looks for sound.
const LOOK: Duration = Duration::from_millis(5);
/// A processor that draws has as much time left for the engine as for drawing, times this, while sound is made.
const ENGINE_SHARE: u32 = 4;
/// No frame takes longer; a thread that got no core for a while is not slow at drawing.
const SLOWEST: Duration = Duration::from_millis(100);

/// What the window is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Business {
    /// Nothing; news is painted at once.
    Idle,
    /// Sound was asked for and there is none yet.
    Waiting,
    /// Sound is made.
    Making,
    /// Sound is heard and all of it is made.
    Playing,
}

/// The pause before the next frame, known to every thread that has news for the window.
#[derive(Debug, Clone, Default)]
pub(super) struct Pause(Arc<AtomicU64>);

impl Pause {
    pub fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Sets the pause by what goes on and by what a frame takes.
#[derive(Debug, Default)]
pub(super) struct Tempo {
    pub pause: Pause,
    /// Whether the processor draws; nothing before the first frame.
    software: Option<bool>,
    drawing: Duration,
    /// When the last frame was handed over for drawing, if another one was to follow after the pause.
    handed_over: Option<Instant>,
}

impl Tempo {
    /// A frame begins.
    pub fn begin(&mut self, gl: Option<&glow::Context>, computing: Duration) {
        let software = *self.software.get_or_insert_with(|| gl.is_some_and(draws_in_software));
        if software {
            // A processor draws while the thread waits for its picture, which eframe's figure leaves out. On a graphics
            // card that wait is for the screen, and costs nothing.
            let late = self.handed_over.take().map(|at| at.elapsed().saturating_sub(self.pause.get()));
            self.drawing = late.filter(|late| !late.is_zero()).map_or(self.drawing, |late| computing + late);
        } else {
            self.drawing = computing;
        }
        self.drawing = self.drawing.min(SLOWEST);
    }

    /// The frame is handed over; what it shows. Where the processor draws, the picture waits for the first sound, at most
    /// [`WAITING`]: the frame of a key press and those of the keys let go would take the time that the sound needs.
    pub fn end(&mut self, business: Business, sounds: impl Fn() -> bool) {
        self.set(business);
        let begun = Instant::now();
        while self.software == Some(true) && business == Business::Waiting && begun.elapsed() < WAITING && !sounds() {
            std::thread::sleep(LOOK);
        }
        self.handed_over = (business != Business::Idle).then(Instant::now);
    }

    /// Sets the pause.
    pub fn set(&self, business: Business) {
        let pause = match business {
            Business::Idle => Duration::ZERO,
            Business::Waiting => WAITING,
            Business::Making => FRAME.max(self.drawing * ENGINE_SHARE),
            Business::Playing => FRAME.max(self.drawing),
        };
        self.pause.0.store(pause.as_micros() as u64, Ordering::Relaxed);
    }

    /// What the last frame took, as far as it is known.
    pub fn drawing(&self) -> Duration {
        self.drawing
    }
}

fn draws_in_software(gl: &glow::Context) -> bool {
    // SAFETY: the context is that of the window, and current on this thread while a frame is made.
    let name = unsafe { gl.get_parameter_string(glow::RENDERER) }.to_lowercase();
    let software = ["llvmpipe", "softpipe", "swiftshader", "software", "basic render"].iter().any(|s| name.contains(s));
    tracing::info!(name, software, "renderer");
    software
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_drawing_leaves_the_cores_to_the_engine_and_an_idle_window_answers_at_once() {
        let pause = |business, ms| {
            let tempo = Tempo { drawing: Duration::from_millis(ms), ..Tempo::default() };
            tempo.set(business);
            tempo.pause.clone().get().as_millis()
        };
        assert_eq!(pause(Business::Idle, 40), 0);
        assert_eq!(pause(Business::Waiting, 1), 150);
        assert_eq!(pause(Business::Making, 1), 16, "sixty frames a second on a machine with a graphics card");
        assert_eq!(pause(Business::Making, 20), 80);
        assert_eq!(pause(Business::Playing, 20), 20, "nobody needs the cores any more");
    }

    #[test]
    fn where_the_processor_draws_a_frame_lasts_until_the_next_could_begin() {
        let computing = Duration::from_millis(2);
        let before = |ms| Some(Instant::now() - Duration::from_millis(ms));
        let mut tempo = Tempo { software: Some(true), ..Tempo::default() };
        tempo.set(Business::Playing);
        tempo.handed_over = before(26);
        tempo.begin(None, computing);
        assert!(tempo.drawing() >= Duration::from_millis(12) && tempo.drawing() <= SLOWEST, "{:?}", tempo.drawing());
        tempo.drawing = SLOWEST;
        tempo.end(Business::Making, || true);
        tempo.begin(None, computing);
        assert_eq!(tempo.drawing(), SLOWEST, "a key press that comes before the pause is over tells nothing new");
        tempo.end(Business::Idle, || false);
        tempo.begin(None, computing);
        assert_eq!(tempo.drawing(), SLOWEST, "nor does a rest");
        let mut card = Tempo { software: Some(false), handed_over: before(26), ..Tempo::default() };
        card.begin(None, computing);
        assert_eq!(card.drawing(), computing, "a wait for the screen is no work");
    }

    #[test]
    fn a_picture_waits_for_the_first_sound_only_where_it_would_delay_it_and_not_for_ever() {
        let wait = |software, business, sounds: bool| {
            let mut tempo = Tempo { software: Some(software), ..Tempo::default() };
            let begun = Instant::now();
            tempo.end(business, || sounds);
            begun.elapsed()
        };
        assert!(wait(true, Business::Waiting, false) >= WAITING);
        let cases =
            [(true, Business::Waiting, true), (true, Business::Making, false), (false, Business::Waiting, false)];
        for (software, business, sounds) in cases {
            assert!(wait(software, business, sounds) < WAITING, "{software} {business:?} {sounds}");
        }
    }
}
