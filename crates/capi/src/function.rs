//! How the functions of the header that are called on an open handle are defined.

/// Define functions of the header. Their first argument is the handle, of which, or of whose part, the body has a reference. A body
/// returns what C gets, or a failure, which becomes the negative errno. The text is what the callers promise.
macro_rules! functions {
    (@view $open:ident) => { $open };
    (@view $open:ident $view:ident) => { $view };
    ($promise:literal $(
        $(#[doc = $more:literal])*
        fn $name:ident($handle:ident: $open:ident $(as $view:ident)? $(, $argument:ident: $type:ty)* $(,)?) $body:block
    )+) => {$(
        /// See the header.
        ///
        /// # Safety
        #[doc = $promise]
        $(#[doc = $more])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($handle: *mut $open $(, $argument: $type)*) -> std::ffi::c_int {
            $crate::failure::guarded(|| {
                // SAFETY: promised by the caller.
                let $handle = unsafe { <$crate::function::functions!(@view $open $($view)?)>::from_c($handle) }?;
                $body
            })
        }
    )+};
}

pub(crate) use functions;
