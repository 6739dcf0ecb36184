//! How like one sound is to another.

/// Where a sound lies in another, and how like it is there.
#[derive(Debug, Clone, Copy)]
pub struct Likeness {
    pub offset: usize,
    pub correlation: f64,
}

/// Aligns `wanted` with a recording of it by their beginnings, and then exactly.
pub fn compare(recording: &[f32], wanted: &[f32]) -> Result<Likeness, String> {
    let peak = wanted.iter().fold(0.0f32, |a, s| a.max(s.abs()));
    let onset = |samples: &[f32]| samples.iter().position(|s| s.abs() > peak * 0.02).ok_or("there is no sound");
    let (there, here) = (onset(recording)?, onset(wanted)?);
    let about = there.saturating_sub(here);
    let window = &wanted[here..(here + 24_000).min(wanted.len())];
    let near = about.saturating_sub(2000)..about + 2000;
    let offset = best(recording, window, near.start + here..near.end + here).offset.saturating_sub(here);
    let length = wanted.len().min(recording.len() - offset);
    if length * 100 < wanted.len() * 99 {
        return Err("the recording ends before the sound does".to_owned());
    }
    Ok(Likeness { offset, correlation: correlation(&recording[offset..offset + length], &wanted[..length]) })
}

/// Finds a recording of a part of `whole` in it.
pub fn find(recording: &[f32], whole: &[f32]) -> Result<Likeness, String> {
    let loudest = (0..recording.len() / 2400).max_by(|&a, &b| {
        let power = |i: usize| recording[i * 2400..(i + 1) * 2400].iter().map(|s| s * s).sum::<f32>();
        power(a).total_cmp(&power(b))
    });
    let at = loudest.ok_or("there is no sound")? * 2400;
    let place = best(whole, &recording[at..at + 2400], 0..whole.len() - 2400).offset;
    let start = place.checked_sub(at).ok_or("it is nowhere in the whole")?;
    let length = recording.len().min(whole.len() - start);
    Ok(Likeness { offset: start, correlation: correlation(&recording[..length], &whole[start..start + length]) })
}

/// The place where a short window fits best.
fn best(samples: &[f32], window: &[f32], places: std::ops::Range<usize>) -> Likeness {
    let most = samples.len().saturating_sub(window.len());
    let mut best = Likeness { offset: places.start, correlation: -1.0 };
    for offset in places.start..places.end.min(most) {
        let part = &samples[offset..offset + window.len()];
        let (mut product, mut power) = ([0.0f32; 16], [0.0f32; 16]);
        for (a, b) in part.as_chunks::<16>().0.iter().zip(window.as_chunks::<16>().0) {
            for i in 0..16 {
                product[i] += a[i] * b[i];
                power[i] += a[i] * a[i];
            }
        }
        let (product, power): (f32, f32) = (product.iter().sum(), power.iter().sum());
        let fit = f64::from(product / (power.sqrt() + 1e-6));
        if fit > best.correlation || offset == places.start {
            best = Likeness { offset, correlation: fit };
        }
    }
    best
}

fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-12)
}

/// The longest stretch of silence in the recording where there should be sound.
pub fn longest_dropout_secs(recording: &[f32], wanted: &[f32], rate_hz: u32) -> f32 {
    let (mut run, mut longest) = (0u32, 0u32);
    for (heard, meant) in recording.iter().zip(wanted) {
        run = if heard.abs() < 1e-6 && meant.abs() > 1e-4 { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest as f32 / rate_hz as f32
}
