//! Icons, drawn rather than typeset, so that they are sharp at every scale and need no font.

use eframe::egui::{Color32, Painter, Pos2, Rect, Shape, Stroke, StrokeKind, pos2, vec2};

/// A picture on a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icon {
    /// A triangle.
    Play,
    /// Two bars.
    Pause,
    /// A square.
    Stop,
    /// A bar and a triangle to the left.
    Restart,
    /// An arrow into a tray.
    Save,
    /// A microphone.
    Microphone,
    /// A plus.
    Open,
    /// A cross.
    Close,
    /// Three sliders.
    Sliders,
    /// Half a disc.
    Contrast,
    /// A loudspeaker.
    Speaker,
    /// A closed padlock.
    Locked,
    /// An open padlock.
    Unlocked,
    /// A die.
    Dice,
    /// A tick.
    Tick,
    /// An exclamation mark in a triangle.
    Warning,
    /// A downward angle.
    More,
    /// An upward angle.
    Less,
    /// Two waves, one filled.
    Compare,
}

impl Icon {
    /// Draws it in the middle of `rect`, sixteen points wide at most.
    pub fn paint(self, painter: &Painter, rect: Rect, color: Color32) {
        let side = rect.width().min(rect.height()).min(16.0);
        let pen = Pen { origin: rect.center() - vec2(side, side) / 2.0, unit: side / 16.0, color, painter };
        match self {
            Self::Play => pen.polygon(&[(4.5, 2.5), (13.5, 8.0), (4.5, 13.5)]),
            Self::Pause => {
                pen.bar(4.0, 3.0, 3.0, 10.0);
                pen.bar(9.0, 3.0, 3.0, 10.0);
            }
            Self::Stop => pen.bar(3.5, 3.5, 9.0, 9.0),
            Self::Restart => {
                pen.bar(3.0, 3.5, 1.8, 9.0);
                pen.polygon(&[(13.0, 3.5), (13.0, 12.5), (5.8, 8.0)]);
            }
            Self::Save => {
                pen.line(&[(8.0, 2.0), (8.0, 10.0)]);
                pen.line(&[(4.8, 7.0), (8.0, 10.2), (11.2, 7.0)]);
                pen.line(&[(2.5, 10.5), (2.5, 13.5), (13.5, 13.5), (13.5, 10.5)]);
            }
            Self::Microphone => {
                pen.rounded(5.8, 1.8, 4.4, 7.6, 2.2);
                pen.line(&[(3.4, 7.4), (3.9, 9.6), (5.6, 11.2), (8.0, 11.7), (10.4, 11.2), (12.1, 9.6), (12.6, 7.4)]);
                pen.line(&[(8.0, 11.7), (8.0, 14.3)]);
            }
            Self::Open => {
                pen.line(&[(8.0, 3.0), (8.0, 13.0)]);
                pen.line(&[(3.0, 8.0), (13.0, 8.0)]);
            }
            Self::Close => {
                pen.line(&[(4.0, 4.0), (12.0, 12.0)]);
                pen.line(&[(12.0, 4.0), (4.0, 12.0)]);
            }
            Self::Sliders => pen.sliders(),
            Self::Contrast => pen.contrast(),
            Self::Speaker => {
                pen.polygon(&[(2.0, 6.0), (4.5, 6.0), (8.0, 3.0), (8.0, 13.0), (4.5, 10.0), (2.0, 10.0)]);
                pen.line(&[(10.3, 5.8), (11.3, 8.0), (10.3, 10.2)]);
                pen.line(&[(12.4, 4.2), (14.0, 8.0), (12.4, 11.8)]);
            }
            Self::Locked => pen.padlock(true),
            Self::Unlocked => pen.padlock(false),
            Self::Dice => {
                pen.frame(2.8, 2.8, 10.4, 10.4, 2.4);
                for (x, y) in [(5.8, 5.8), (10.2, 10.2), (8.0, 8.0)] {
                    pen.dot(x, y, 1.0);
                }
            }
            Self::Tick => pen.line(&[(3.2, 8.4), (6.6, 11.8), (13.0, 4.6)]),
            Self::Warning => {
                pen.line(&[(8.0, 2.4), (14.2, 13.2), (1.8, 13.2), (8.0, 2.4)]);
                pen.line(&[(8.0, 6.2), (8.0, 9.4)]);
                pen.dot(8.0, 11.4, 0.8);
            }
            Self::More => pen.line(&[(4.0, 6.2), (8.0, 10.2), (12.0, 6.2)]),
            Self::Less => pen.line(&[(4.0, 9.8), (8.0, 5.8), (12.0, 9.8)]),
            Self::Compare => {
                pen.frame(2.0, 2.6, 5.0, 10.8, 1.2);
                pen.bar(9.0, 2.6, 5.0, 10.8);
            }
        }
    }
}

struct Pen<'a> {
    origin: Pos2,
    unit: f32,
    color: Color32,
    painter: &'a Painter,
}

impl Pen<'_> {
    fn at(&self, x: f32, y: f32) -> Pos2 {
        pos2(self.origin.x + x * self.unit, self.origin.y + y * self.unit)
    }

    fn stroke(&self) -> Stroke {
        Stroke::new((1.5 * self.unit).max(1.2), self.color)
    }

    fn line(&self, points: &[(f32, f32)]) {
        self.painter.line(points.iter().map(|&(x, y)| self.at(x, y)).collect(), self.stroke());
    }

    fn polygon(&self, points: &[(f32, f32)]) {
        let points = points.iter().map(|&(x, y)| self.at(x, y)).collect();
        self.painter.add(Shape::convex_polygon(points, self.color, Stroke::NONE));
    }

    fn rect(&self, x: f32, y: f32, w: f32, h: f32) -> Rect {
        Rect::from_min_size(self.at(x, y), vec2(w, h) * self.unit)
    }

    fn bar(&self, x: f32, y: f32, w: f32, h: f32) {
        self.painter.rect_filled(self.rect(x, y, w, h), self.unit, self.color);
    }

    fn rounded(&self, x: f32, y: f32, w: f32, h: f32, radius: f32) {
        self.painter.rect_filled(self.rect(x, y, w, h), radius * self.unit, self.color);
    }

    fn frame(&self, x: f32, y: f32, w: f32, h: f32, radius: f32) {
        self.painter.rect_stroke(self.rect(x, y, w, h), radius * self.unit, self.stroke(), StrokeKind::Middle);
    }

    fn dot(&self, x: f32, y: f32, radius: f32) {
        self.painter.circle_filled(self.at(x, y), radius * self.unit, self.color);
    }

    fn sliders(&self) {
        for (y, knob) in [(4.0, 10.5), (8.0, 5.5), (12.0, 9.0)] {
            self.line(&[(2.0, y), (14.0, y)]);
            self.dot(knob, y, 2.0);
        }
    }

    fn contrast(&self) {
        self.painter.circle_stroke(self.at(8.0, 8.0), 5.8 * self.unit, self.stroke());
        let half = (0..=16).map(|i| {
            let angle = std::f32::consts::PI * (i as f32 / 16.0 - 0.5);
            self.at(8.0 + 5.8 * angle.cos(), 8.0 + 5.8 * angle.sin())
        });
        self.painter.add(Shape::convex_polygon(half.collect(), self.color, Stroke::NONE));
    }

    fn padlock(&self, closed: bool) {
        self.rounded(3.2, 7.2, 9.6, 6.8, 1.6);
        let shift = if closed { 0.0 } else { 3.6 };
        let (left, right) = (5.2 + shift, 10.8 + shift);
        let foot = if closed { 7.4 } else { 5.4 };
        self.line(&[
            (left, 7.4),
            (left, 4.8),
            (left + 0.9, 2.9),
            (left + 2.8, 2.2),
            (right - 0.9, 2.9),
            (right, 4.8),
            (right, foot),
        ]);
    }
}
