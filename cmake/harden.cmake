# Flags that make a mistake in a parser harder to use. tests/house.sh `binary` looks for them in the release program.
include_guard()
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# nb_try_flags(VAR flags...): those the compiler takes for this processor, in VAR.
function(nb_try_flags var)
  set(taken "")
  foreach(flag IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "NB_TAKES${flag}" known)
    check_c_compiler_flag(-Werror\ ${flag} ${known})
    if(${known})
      list(APPEND taken ${flag})
    endif()
  endforeach()
  set(${var} ${taken} PARENT_SCOPE)
endfunction()

add_compile_options(-fno-common -fstack-protector-strong)
nb_try_flags(guards -fstack-clash-protection -fcf-protection=full)
add_compile_options(${guards})
add_link_options(LINKER:-z,relro,-z,now,-z,noexecstack,--as-needed)

# NB_GUARD: not for kernels and solvers, which see only what was checked. Overflow and variables without a value are the sanitizers' where they run.
set(NB_GUARD -fno-delete-null-pointer-checks -fno-strict-aliasing)
if(NOT NB_SANITIZE)
  nb_try_flags(more -fno-strict-overflow -ftrivial-auto-var-init=zero -fzero-call-used-regs=used-gpr)
  list(APPEND NB_GUARD ${more})
  if(NOT CMAKE_BUILD_TYPE STREQUAL Debug)
    add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
  endif()
endif()
