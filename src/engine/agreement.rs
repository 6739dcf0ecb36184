//! How often two settings of a model agree: the tokens that one would choose on the other's way.

use std::sync::Arc;

use crate::error::Result;
use crate::model::Model;
use crate::sampling::Sampler;
use crate::synthesis::SpeakRequest;
use crate::t3::{DecodeOptions, Decoding};

/// Steps that were compared, and those at which the choice was the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// All steps.
    pub steps: usize,
    /// Steps with the same token.
    pub equal: usize,
}

impl Agreement {
    /// Share of equal steps; 1 where there are none.
    pub fn share(&self) -> f64 {
        if self.steps == 0 { 1.0 } else { self.equal as f64 / self.steps as f64 }
    }
}

/// Feeds `tokens`, those of each sentence of the request, to T3 one by one (teacher forcing) and compares each with the
/// one that this model would have chosen in its place with the same random number.
///
/// # Errors
/// If text, voice or settings do not fit the model, or it fails.
pub fn agreement(model: &Arc<Model>, request: &SpeakRequest, tokens: &[Vec<u32>]) -> Result<Agreement> {
    let texts = model.encode_sentences(&model.split_text(&request.text)?, &request.settings)?;
    let cond = model.conditioning(&request.voice, request.settings.exaggeration)?;
    let (t3, options) = (&model.t3, model.decode_options(request));
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let most = tokens.iter().map(Vec::len).max().unwrap_or(0);
    let capacity = t3.positions_needed(&cond, longest, most);
    let mut state = model.take_t3_state(t3.is_guided(options.sampling.cfg_weight), capacity)?;
    let mut found = Agreement::default();
    for (sentence, (text, tokens)) in texts.iter().zip(tokens).enumerate() {
        let options = DecodeOptions {
            sentence,
            max_tokens: tokens.len(),
            force_tokens: tokens.clone(),
            record_logits: true,
            ..options.clone()
        };
        let mut sampler = Sampler::new(t3.config().backbone, t3.config().speech_vocab, options.sampling)?;
        model.lanes.all.install(|| -> Result<()> {
            let mut decoding = Decoding::start(t3, &mut state, (&cond, text), &*request.noise, options)?;
            while decoding.next_token()?.is_some() {}
            for (step, (logits, &token)) in decoding.logits().iter().zip(tokens).enumerate() {
                let rows: Vec<f32> = logits.flatten_all()?.to_vec1()?;
                let choice = sampler.sample(&rows, None, request.noise.uniform(sentence, step))?;
                found.steps += 1;
                found.equal += usize::from(choice == token);
                sampler.accept(token);
            }
            Ok(())
        })?;
    }
    model.return_t3_state(state);
    Ok(found)
}
