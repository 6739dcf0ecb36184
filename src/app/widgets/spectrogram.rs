//! Spectrograms: of a sound, or of the difference of two.

use eframe::egui::{
    Color32, ColorImage, Id, Rect, Response, Role, Sense, TextureHandle, TextureOptions, Ui, WidgetInfo, lerp, pos2,
    vec2,
};

use crate::comparison::Spectrogram;
use crate::theme::{RADIUS, palette};

/// How values become colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shade {
    /// From the loudest value down.
    Level,
    /// Around nothing: what is more in one colour, what is less in the other.
    Difference,
}

/// What is this much below the loudest is as dark as silence, in dB.
const LEVEL_RANGE_DB: f32 = 70.0;
/// Differences from here on have the full colour, in dB.
pub const DIFFERENCE_RANGE_DB: f32 = 12.0;

/// The picture, as high as told and as wide as there is room; `name` tells pictures apart and screen readers what it is.
pub fn spectrogram(ui: &mut Ui, height: f32, name: &str, picture: &Spectrogram, shade: Shade) -> Response {
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), height), Sense::hover());
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, name));
    ui.painter().rect_filled(rect, RADIUS, palette(ui).ground);
    if picture.columns == 0 {
        return response;
    }
    let texture = texture(ui, name, picture, shade);
    let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
    ui.painter().image(texture.id(), rect, whole, Color32::WHITE);
    response
}

/// The picture on the graphics card; made once for each picture and theme.
fn texture(ui: &Ui, name: &str, picture: &Spectrogram, shade: Shade) -> TextureHandle {
    let id = Id::unique("spectrogram").with(name);
    let key = (picture.db.as_ptr() as usize, picture.db.len(), ui.visuals().dark_mode, shade);
    if let Some((known, texture)) = ui.data(|data| data.get_temp::<(Key, TextureHandle)>(id))
        && known == key
    {
        return texture;
    }
    let texture = ui.ctx().load_texture(name, image(ui, picture, shade), TextureOptions::LINEAR);
    ui.data_mut(|data| data.insert_temp(id, (key, texture.clone())));
    texture
}

/// Where the values are, how many there are, and how they are shown.
type Key = (usize, usize, bool, Shade);

fn image(ui: &Ui, picture: &Spectrogram, shade: Shade) -> ColorImage {
    let p = palette(ui);
    let mix = |to: Color32, share: f32| {
        let channel = |from: u8, to: u8| lerp(f32::from(from)..=f32::from(to), share.clamp(0.0, 1.0)) as u8;
        let from = p.ground;
        Color32::from_rgb(channel(from.r(), to.r()), channel(from.g(), to.g()), channel(from.b(), to.b()))
    };
    let loudest = picture.db.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let color = |db: f32| match shade {
        Shade::Level => mix(p.accent_text, 1.0 - (loudest - db) / LEVEL_RANGE_DB),
        Shade::Difference if db > 0.0 => mix(p.accent_text, db / DIFFERENCE_RANGE_DB),
        Shade::Difference => mix(p.cool, -db / DIFFERENCE_RANGE_DB),
    };
    let (columns, bands) = (picture.columns, picture.bands);
    // The highest band is at the top.
    let pixels = (0..bands).rev().flat_map(|band| (0..columns).map(move |column| picture.db[column * bands + band]));
    ColorImage::new([columns, bands], pixels.map(color).collect())
}
