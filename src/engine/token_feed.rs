//! T3 on a thread of its own, sentence after sentence, ahead of S3Gen.
//!
//! Until the first sound is out, T3 makes only the tokens that this sound needs, with all cores, and then leaves them to
//! S3Gen; after that both run at once on their own lanes, and T3 takes all cores whenever S3Gen waits for it. On a graphics
//! card it is the same but for the cores: there T3 fills every multiprocessor while it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::error::{Error, Result};
use crate::model::Model;
use crate::noise::NoiseSource;
use crate::protocol::CancelToken;
use crate::t3::{DecodeOptions, Decoding, T3Conditioning};
use crate::trace::Trace;

/// Tokens that T3 may be ahead of S3Gen: a minute of speech.
const MOST_AHEAD: usize = 1500;

/// What the feed is to say.
pub(crate) struct FeedJob {
    pub cond: T3Conditioning,
    /// Text ids of each sentence.
    pub texts: Vec<Vec<u32>>,
    /// Options of every sentence but for its number.
    pub options: DecodeOptions,
    /// Silence codes that the variant's S3Gen wants behind each sentence.
    pub tail: Vec<u32>,
    pub noise: Arc<dyn NoiseSource>,
    pub trace: Arc<Trace>,
    pub cancel: CancelToken,
    /// Whether T3 waits for [`TokenFeed::allow`] and [`TokenFeed::release`].
    pub gated: bool,
}

/// What comes out, in order.
#[derive(Debug)]
pub(crate) enum Fed {
    /// A speech code.
    Token(u32),
    /// A code of the silence behind a sentence, which T3 did not choose.
    Tail(u32),
    /// The sentence is over.
    SentenceEnd,
}

/// T3's own figures.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FeedTimes {
    pub prefill: Duration,
    pub steps: Duration,
    pub tokens: usize,
}

#[derive(Default)]
struct Shared {
    /// Tokens T3 may make in all so far.
    allowed: Mutex<usize>,
    changed: Condvar,
    /// S3Gen has nothing to do.
    s3gen_idle: AtomicBool,
    finished: AtomicBool,
    /// T3 leaves the cores alone.
    on_card: bool,
    stopped: AtomicBool,
    times: Mutex<FeedTimes>,
}

/// The receiving end. Dropping it stops T3.
pub(crate) struct TokenFeed {
    tokens: Receiver<Result<Fed>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl TokenFeed {
    /// Starts T3.
    pub(crate) fn start(model: &Arc<Model>, job: FeedJob) -> Result<Self> {
        let (sender, tokens) = bounded(MOST_AHEAD);
        let on_card = model.t3.runs_on_card(&job.options);
        let allowed = Mutex::new(if job.gated { 0 } else { usize::MAX });
        let shared = Arc::new(Shared { allowed, on_card, ..Shared::default() });
        shared.s3gen_idle.store(true, Ordering::Relaxed);
        let runner = Runner { model: model.clone(), job, sender, shared: shared.clone() };
        let thread = std::thread::Builder::new().name("myna-t3".to_owned()).spawn(move || runner.run());
        let thread = thread.map_err(|e| Error::internal(format!("cannot start T3's thread: {e}")))?;
        Ok(Self { tokens, shared, thread: Some(thread) })
    }

    /// Waits up to `timeout` for the next item; nothing if none came. From here on S3Gen wants no cores.
    pub(crate) fn next(&self, timeout: Duration) -> Result<Option<Fed>> {
        self.shared.s3gen_idle.store(true, Ordering::Relaxed);
        match self.tokens.recv_timeout(timeout) {
            Ok(item) => item.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::internal("T3's thread ended without a word")),
        }
    }

    /// Lets T3 make `tokens` in all.
    pub(crate) fn allow(&self, tokens: usize) {
        let mut allowed = self.shared.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        *allowed = tokens.max(*allowed);
        self.shared.changed.notify_all();
    }

    /// Lets T3 run on freely: the first sound is out.
    pub(crate) fn release(&self) {
        self.allow(usize::MAX);
    }

    /// S3Gen has the tokens it waited for and begins to work. Whether T3 works as well; while it does not, S3Gen may take
    /// all cores.
    pub(crate) fn s3gen_begins(&self) -> bool {
        self.shared.s3gen_idle.store(false, Ordering::Relaxed);
        !self.shared.on_card
            && !self.shared.finished.load(Ordering::Relaxed)
            && *self.shared.allowed.lock().unwrap_or_else(PoisonError::into_inner) == usize::MAX
    }

    /// T3's figures so far.
    pub(crate) fn times(&self) -> FeedTimes {
        *self.shared.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TokenFeed {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.release();
        // A full channel would keep T3 waiting for room.
        while self.tokens.recv_timeout(Duration::from_secs(10)).is_ok() {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Runner {
    model: Arc<Model>,
    job: FeedJob,
    sender: Sender<Result<Fed>>,
    shared: Arc<Shared>,
}

impl Runner {
    fn run(self) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.speak()));
        let outcome = outcome.unwrap_or_else(|_| Err(Error::internal("T3 failed; load the model again")));
        self.shared.finished.store(true, Ordering::Relaxed);
        if let Err(error) = outcome {
            let _ = self.sender.send(Err(error));
        }
    }

    fn speak(&self) -> Result<()> {
        let t3 = &self.model.t3;
        let job = &self.job;
        let guided = t3.is_guided(job.options.sampling.cfg_weight);
        let longest = job.texts.iter().map(Vec::len).max().unwrap_or(0);
        let capacity = t3.positions_needed(&job.cond, longest, job.options.max_tokens);
        let mut state = self.model.take_t3_state(guided, capacity)?;
        for (sentence, text) in job.texts.iter().enumerate() {
            let options = DecodeOptions { sentence, ..job.options.clone() };
            let started = Instant::now();
            let all = &self.model.lanes.all;
            let begin = || Decoding::start(t3, &mut state, (&job.cond, text), &*job.noise, options);
            let mut decoding = all.install(begin)?;
            self.note(|times| times.prefill += started.elapsed());
            self.steps(&mut decoding)?;
            for logits in decoding.logits() {
                // One row without guidance, two with it.
                let logits = if logits.dims()[0] == 1 { logits.squeeze(0)? } else { logits.clone() };
                job.trace.step("t3_logits", &logits)?;
            }
            drop(decoding);
            for &code in &job.tail {
                self.send(Fed::Tail(code))?;
            }
            self.send(Fed::SentenceEnd)?;
        }
        self.model.return_t3_state(state);
        Ok(())
    }

    fn steps(&self, decoding: &mut Decoding<'_>) -> Result<()> {
        loop {
            decoding.limit_ahead(self.wait_for_leave()?);
            let lanes = &self.model.lanes;
            let lane = if self.shared.s3gen_idle.load(Ordering::Relaxed) { &lanes.all } else { &lanes.t3 };
            let started = Instant::now();
            let mut next = || decoding.next_token();
            let token = if self.shared.on_card { next()? } else { lane.install(next)? };
            self.note(|times| {
                times.steps += started.elapsed();
                times.tokens += usize::from(token.is_some());
            });
            match token {
                Some(token) => self.send(Fed::Token(token))?,
                None => return Ok(()),
            }
        }
    }

    /// Blocks while S3Gen should have the cores to itself. How many tokens T3 may make then.
    fn wait_for_leave(&self) -> Result<usize> {
        let mut allowed = self.shared.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.job.cancel.is_cancelled() || self.shared.stopped.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let made = self.shared.times.lock().unwrap_or_else(PoisonError::into_inner).tokens;
            if made < *allowed {
                return Ok(*allowed - made);
            }
            let waited = self.shared.changed.wait_timeout(allowed, Duration::from_millis(50));
            allowed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn send(&self, item: Fed) -> Result<()> {
        self.sender.send(Ok(item)).map_err(|_| Error::Cancelled)
    }

    fn note(&self, change: impl FnOnce(&mut FeedTimes)) {
        change(&mut self.shared.times.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
