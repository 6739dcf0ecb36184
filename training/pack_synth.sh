#!/bin/bash
# Packs the espeak-ng and flite shared libraries and data into data/synth.tar.xz (x86-64 Debian/Ubuntu).  Nothing of it is shipped with Myna.
set -e; cd "$(dirname "$0")"; W=$(mktemp -d); mkdir -p $W/deb $W/x $W/espk $W/flt data
(cd $W/deb; apt-get download libespeak-ng1 espeak-ng-data libsonic0 libflite1)
for d in $W/deb/*.deb; do dpkg -x $d $W/x; done
L=$W/x/usr/lib/x86_64-linux-gnu
cp -rL $L/espeak-ng-data $W/espk/; for f in libespeak-ng.so.1 libsonic.so.0; do cp -L $L/$f $W/espk/; done
for n in '' _usenglish _cmulex _cmu_us_awb _cmu_us_kal16 _cmu_us_rms _cmu_us_slt; do cp -L $L/libflite$n.so.1 $W/flt/; done
# sound output is never used: stubs instead of libpcaudio and libasound
{ echo '#include <stddef.h>'; for f in create_audio_device_object audio_object_open audio_object_close audio_object_destroy audio_object_write audio_object_drain audio_object_flush audio_object_strerror; do echo "void *$f(void){return NULL;}"; done; } > $W/a.c
F='snd_config_update_free_global snd_pcm_close snd_pcm_drain snd_pcm_drop snd_pcm_hw_params snd_pcm_hw_params_any snd_pcm_hw_params_set_access snd_pcm_hw_params_set_channels snd_pcm_hw_params_set_format snd_pcm_hw_params_set_rate snd_pcm_hw_params_sizeof snd_pcm_open snd_pcm_prepare snd_pcm_resume snd_pcm_set_params snd_pcm_state snd_pcm_wait snd_pcm_writei snd_strerror'
for f in $F; do echo "int $f(void){return -1;}"; done > $W/b.c; echo "ALSA_0.9 { global: $(echo $F | sed 's/ /; /g'); local: *; };" > $W/b.map
gcc -shared -fPIC -Wl,-soname,libpcaudio.so.0 -o $W/espk/libpcaudio.so.0 $W/a.c
gcc -shared -fPIC -Wl,-soname,libasound.so.2 -Wl,--version-script=$W/b.map -o $W/flt/libasound.so.2 $W/b.c
tar cJf data/synth.tar.xz -C $W espk flt; rm -rf $W; ls -la data/synth.tar.xz
