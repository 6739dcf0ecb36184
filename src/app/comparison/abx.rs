//! The blind test: X is A or B, and a listener says which. How likely would guessing do as well?

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What X was: the second side or the first.
    pub x_was_b: bool,
    /// Whether that was recognised.
    pub right: bool,
}

/// A blind test with a number of trials that is fixed before it begins: whoever stops when the score is good fools himself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abx {
    trials: usize,
    answers: Vec<Answer>,
    x_is_b: bool,
    random: u64,
}

impl Abx {
    /// A test of so many trials; what X is follows from `seed`.
    pub fn new(trials: usize, seed: u64) -> Self {
        let mut test = Self { trials: trials.max(1), answers: Vec::new(), x_is_b: false, random: seed };
        test.draw();
        test
    }

    /// Whether X is the second side at present. Not for the eyes of the listener.
    pub fn x_is_b(&self) -> bool {
        self.x_is_b
    }

    /// Number of trials.
    pub fn trials(&self) -> usize {
        self.trials
    }

    /// Answers so far.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Whether all trials are over.
    pub fn is_over(&self) -> bool {
        self.answers.len() == self.trials
    }

    /// Takes an answer and goes on to the next trial.
    pub fn answer(&mut self, x_is_b: bool) {
        if !self.is_over() {
            self.answers.push(Answer { x_was_b: self.x_is_b, right: x_is_b == self.x_is_b });
            self.draw();
        }
    }

    /// Right answers.
    pub fn right(&self) -> usize {
        self.answers.iter().filter(|answer| answer.right).count()
    }

    /// The probability of at least so many right answers by guessing: the upper tail of a binomial distribution with
    /// one half.
    pub fn p_value(&self) -> f64 {
        let n = self.answers.len() as u32;
        let ways = |k: u32| (0..k).fold(1.0, |ways, i| ways * f64::from(n - i) / f64::from(i + 1));
        (self.right() as u32..=n).map(ways).sum::<f64>() * 0.5f64.powi(n as i32)
    }

    /// SplitMix64 (Steele, Lea and Flood 2014); its highest bit is the coin.
    fn draw(&mut self) {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.x_is_b = (z ^ (z >> 31)) >> 63 == 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_score(right: usize, trials: usize) -> Abx {
        let mut test = Abx::new(trials, 7);
        for i in 0..trials {
            test.answer(test.x_is_b() == (i < right));
        }
        test
    }

    #[test]
    fn the_p_value_is_the_tail_of_the_binomial_distribution() {
        // Published tables of ABX scores.
        for (right, trials, p) in [(5, 5, 0.03125), (9, 10, 0.0107), (8, 10, 0.0547), (12, 16, 0.0384), (0, 8, 1.0)] {
            let found = with_score(right, trials);
            assert!((found.p_value() - p).abs() < 5e-5, "{right} of {trials}: {}", found.p_value());
            assert_eq!((found.right(), found.is_over()), (right, true));
        }
        assert!((with_score(60, 100).p_value() - 0.0284).abs() < 5e-5);
        assert_eq!(Abx::new(10, 1).p_value(), 1.0);
    }

    #[test]
    fn x_is_either_about_as_often_and_does_not_follow_a_pattern() {
        let mut test = Abx::new(2000, 99);
        (0..2000).for_each(|_| test.answer(true));
        let was = |i: usize| test.answers()[i].x_was_b;
        let (ones, changes) =
            ((0..2000).filter(|&i| was(i)).count(), (1..2000).filter(|&i| was(i) != was(i - 1)).count());
        assert!((930..1070).contains(&ones) && (930..1070).contains(&changes), "{ones} {changes}");
        assert_eq!(test.right(), ones);
    }

    #[test]
    fn nothing_counts_after_the_last_trial() {
        let mut test = with_score(3, 4);
        test.answer(true);
        assert_eq!(test.answers().len(), 4);
    }
}
