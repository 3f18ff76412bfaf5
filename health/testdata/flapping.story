# A pod that works just long enough to be readmitted pays a growing price.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin p1                         | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
60s end p1 success                   | healthy health=0.643 failures=0 ejections=1 <readmitted>
61s begin c                          | healthy health=0.643 failures=0 ejections=1
61s end c failure                    | healthy health=0.450 failures=1 ejections=1
61s begin d                          | healthy health=0.450 failures=1 ejections=1
61s end d failure                    | ejected health=0.315 failures=2 ejections=2 until=3m1s unusable <ejected>
181s begin p2                        | probing health=0.315 failures=2 ejections=2 until=3m1s unusable
181s end p2 success                  | healthy health=0.521 failures=0 ejections=2 <readmitted>
182s begin e                         | healthy health=0.521 failures=0 ejections=2
182s end e failure                   | healthy health=0.364 failures=1 ejections=2
182s begin f                         | healthy health=0.364 failures=1 ejections=2
182s end f failure                   | ejected health=0.255 failures=2 ejections=3 until=7m2s unusable <ejected>
