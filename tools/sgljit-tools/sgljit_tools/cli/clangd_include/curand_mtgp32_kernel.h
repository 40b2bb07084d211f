// Found only where the CUDA toolkit has no cuRAND headers. clang's CUDA mode includes this file of cuRAND's in every
// translation unit, and stops half way through its own set-up where there is none.
