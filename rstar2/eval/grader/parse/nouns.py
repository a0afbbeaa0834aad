"""Words that may follow a number without changing it: nouns that are counted, and remarks about such nouns.

`120 apples`, `5 different ways`, `7 cups of flour` and `3 times per week` mean 120, 5, 7 and 3. Other words may change
the number, as in `120 quadrillion`, `120 in hex` or `17th root`, so a word that is not listed here is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Set

from rstar2.eval.grader.parse.vocabulary import ORDINAL_WORDS, name_set

_PLURALS = name_set("""
    accidents accounts acorns actors addresses administrators ads adults afternoons aircraft airplanes albums
    alligators amulets anagrams angles animals answers antacids antibiotics antlers ants apartments appetizers
    apples applications appointments apps aquariums arcs armchairs arms arrangements arrows artichokes articles
    artifacts artists artworks asparagus assignments asymptotes athletes atoms attempts attendees auctions
    audiobooks aunts automorphisms avocados awards babies backpacks bacteria badges baggies bags baguettes bales
    balloons balls bananas bandages bands barrels barrettes bars baseballs basketballs baskets batches bathrooms
    baths bats batteries beads beakers beams beans bearings bears beats beavers bedbugs bedrooms beds bees beetles
    beignets belts benches berets berries bicycles bidders bikes billboards bills binders binomials bins biographies
    birches birdhouses birds biscuits bishops bison bites bits blackbirds blankets blisters blocks blogs blossoms
    blouses blueberries boards boats bollards bolts bonds bones bonnets bonus bookmarks books bookshelves bottlecaps
    bottles bouquets bowlfuls bowls boxcars boxes boxwoods boys bracelets braids branches breads breakfasts breaks
    breaths bricks bridesmaids bridges brochures broomsticks brothers brownies brunettes brushes bubbles buckets
    bugs builders buildings bulbs bulls bunches bundles bunnies buns burgers burritos burrs bus buses bushels bushes
    businesses butterflies buttons buyers bytes cabinets cakes calculators calls calories calves camels campers
    candidates candies candles canes cans cantaloupes canvases caps capsules caramels cardinals cards carnations
    carpenters carpets carriages carrots cars cartons carts cases categories caterpillars cats cattle ceilings
    cellos cells centers centuries certificates chains chairs champions channels chaperones chapters characters
    chargers charts checkers cheerleaders cheeseburgers cheesecakes cheeses cheetahs chefs cherries chests chickens
    chicks children chipmunks chips chives chocolates choices chords chores circles cities citizens claims clamps
    clarinets class classes classmates classrooms claws clerks clicks clients clippings clips cloaks clothes
    clotheslines clouds clovers cloves clowns clubs clusters coals coats cobs coconuts codes coefficients coffees
    coins collars collectors colleges colorings colors colourings columns combinations comics comments commercials
    committees complaints computers condiments cones configurations conjugates consonants contacts containers
    contestants contracts cookies coolers copies corns cosets cosmetics coughs councils counters countries couples
    coupons courses cousins covers cows crabs crackers crafts cranberries cranes craters crates crayons creams
    credits crickets croissants crops crosses crosswalks croutons crows cubes cubs cucumbers cupcakes cups curlers
    curries curtains customers cycles daisies dancers dandelions daughters days dealers decades decks decorations
    deer delegates deliveries demerits desks desserts devices diagonals diapers diaries dice digits dimensions dimes
    dinners diplomas discounts dishes dislikes divisors doctors dogs dolls dolphins dominoes dominos donations
    donors donuts doors doses dots doughnuts doves downloads dragons drawings draws dreams dresses drinks drivers
    driveways drops drummers drums dryers ducklings ducks earnings earrings ears eaters edges eels eggplants eggs
    eigenvalues eigenvectors electrons elements elephants elves emails employees emus enclosures engineers engines
    entrees envelopes episodes equations erasers errors espressos essays evenings exams exercises expenses
    experiments extrema eyes faces factories factors fairies families fans farmhands farms farthings fathers
    feathers feedings fees females fences ferns fields figures figurines files filets fillets films fingers
    firecrackers firefighters fireflies fires fireworks fish fishes flags flamingoes flamingos flats flavors fleas
    flies flights flips floors flowers flutes flyers folders foldings followers footballs footprints forks forms
    fowls foxes frames free-throws fridays friends fries frisbees frogs fronds fruits functions funds furniture
    gadgets galleries games gates geckos geese gems gemstones generations generators genes geraniums gifts
    gingerbreads giraffes girls glasses globes gloves gnomes goals goats goldfish goods graders grades graduates
    grains grams grandchildren granddaughters grandparents grapes graphs grasshoppers groceries groups guests
    guitars gumballs guppies haircuts hairs halls hamburgers handbags handfuls handouts hands handshakes hangers
    hares hatchlings hats hawks heads heaps heartbeats hearts hens heptagons heroes hexagons highlighters hikes
    hills hippos hits hives holes homes homework homeworks homomorphisms hoodies hoops hoots hops horses horseshoes
    hospitals hotdogs hotels hours households houses humans husbands huskies ice-pops iguanas individuals
    inflections ingredients inhabitants insects installments instances instructors instruments integers intercepts
    intersections intervals invitations ions islands isomorphisms items jackets jaguars jars jeans jellybeans
    jellyfish jerseys jewels jobs jokes jugs jumpers jumps juniors kangaroos kebabs kernels kettles keyboards keys
    kicks kids kilos kilowatts kindergartners kinds kings kitchens kits kittens kiwis knights knives knobs knockouts
    knots koalas labelings ladders ladies ladybugs lambs lamps lanes laps laptops lasagnas lattes lattices laughs
    lawnmowers lawns laws lawyers layers leaves legos legs leis lemons lengths lens leopards lessons letters levels
    licks lids lightbulbs lighters lights likes lilacs lilies limbs limes lines links lions lipsticks listens lives
    lizards llamas loads loans loaves loggers logs lollipops loops losers lovers lunches lychees macarons macaroons
    machines magazines maggots magnets magpies males managers mangoes mangos manicures marbles marigolds marines
    markers marks marshmallows mascots masks matchboxes matches matchsticks materials matrices mats maxima meals
    meatballs medals melons members men messages metres mice milkshakes milligrams milliliters millipedes minima
    minnows minutes misses mistakes mittens models molecules moles mondays monitors monkeys monomials monsters
    months moons moose mornings mosquitoes mothers motorbikes motorcycles mountains moves movies muffins mugs
    multiples mushrooms musicians nails napkins necklaces needles neighbors nephews neutrons newborns newspapers
    nickels nieces nights notebooks notepads notes novels nuggets numbers nurses nuts objects octagons officers
    offices olives omelets omelettes onions opponents options oranges orchards orchids orcs orderings orders ounces
    outcomes outfits outsiders owls owners oysters packages packets packs pages pails paintings pairs palindromes
    pallets pamphlets pancakes pandas panels pans pansies pants papayas paperclips papers paragraphs parallelograms
    parents parks parrots parsecs parsnips participants particles parties partitions parts passengers passes
    passwords pastries patches paths patients patrons pauses pawns paws paychecks payments peaches peanuts pearls
    pears peas pebbles pencils penguins pennies pens pentagons people peppers periods permits permutations persons
    petals pets petunias phones photographs photos phrases pianists pianos pickles pictures pieces pies pigeons
    piglets pigs piles pillows pills pilots pineapples pinecones pines pins pirates pistachios pitches pits pixels
    pizzas planes planets planks plans planters plants plates players plays plots plugs plums pockets pods poems
    poets pointers points poles polishes polygons polynomials pomelos poodles pools popsicles portions portraits
    possibilities postcards posters posts potatoes pots pouches presents presidents pretzels primes princes
    princesses printers prints prisms prizes problems processors produces products programs protons pull-ups
    pumpkins pumps punches pupils puppies pups purchases purses push-ups pushups puzzles pyramids pythons quadrilaterals
    quadruples quarters queens questions quiches quilts quizzes rabbits racers races racquets radishes raisins ranks
    raspberries rats rays rectangles redwoods reflections regions relatives reps requests residents residues
    restaurants retweets reviews revolutions rhinestones rhinos ribbons riddles rides ridges rings roads robes
    robins robots rockets rocks rods rolls roofs rooks roommates rooms roosters roots ropes roses rotations rounds
    routers routes rows ruffles rugs rungs runners sacks sacs sailors salads sales salmon salmons samples
    sandcastles sandwiches saplings saturdays sausages saxophones scallops scarves scenarios schedules schoolers
    schools scientists scissors scoops scouts screens screws seagulls seashells seasons seatings seats seconds
    secretaries sections sectors seedlings seeds segments semesters senators seniors sentences sequences sequins
    series servers servings sessions sets settings shares sharks sheep sheets shells shelves shingles ships shirts
    shoes shoppers shops shorts shots shouts showers shrimp siblings sides sightings signs singers singles sisters
    sit-ups sites situps sizes skates skeletons skips skirts skulls sleeves slices smartphones smoothies snacks
    snails snakes sneakers snowballs snowflakes soaps socks sodas soldiers solutions songs sonnets sons souvenirs
    spaces sparklers spears species spheres spiders spiderwebs spokes spools spoonfuls spoons sports spots sprigs
    squads squares squats squirrels stables stacks stairs stamps stanzas staplers stars states stations statues
    steaks stems steps stickers sticks stingrays stitches stockings stones stools stoplights stops stores stories
    strands strategies strawberries straws streetlights streets strikers strikes strings stripes strips strokes
    students studies stuffers subgroups subintervals subjects sublists subscribers subscriptions subsections subsets
    subspaces suckers suggestions suitcases suits sundaes sundays sunflowers supplements surfers surveys swans
    sweaters sweatshirts sweets swordfish syllables symmetries systems tables tablespoons tablets tabs tacos
    tadpoles tails tangents tangerines tanks tarantulas tarts tasks tattoos taxes taxis teachers teacups teams tears
    teas teaspoons teddies teenagers teeth televisions tents terms teslas tests tetras textbooks texts thermoses
    thieves things threads throws thumbtacks thursdays tickets ticks tigers tiles tilings tins tips tires tissues
    toads toddlers toenails toes tokens tolls tomatoes tools toothbrushes toothpicks toppings tosses touchdowns
    tourists tournaments towels towers towns toys tracks tractors trains trapezoids trays treadmills treasurers
    treasures treats trees trials triangles tribes tricks tricycles tries trikes triples trips trolls trombones
    trophies trout trouts truckloads trucks truffles trumpets tubes tubs tuesdays tulips tumblers tuples turkeys
    turtles twigs types umbrellas uncles unicorns uniforms units utensils utilities vacations values vampires vans
    variables vectors vegetables vehicles vents vertices vessels vests vets vibrations videos viewers views villages
    vines violins viruses visitors visits volleyballs volumes volunteers voters votes vowels waffles waiters walks
    walls walnuts wands washers watches watermelons watts waves ways weasels websites wedges wednesdays weeds
    weekdays weekends weeks werewolves whales wheels whiskers whiteboards wickets wicks widgets wights windows wings
    winners wins wipes wives wizards wolves wombats women words workdays workers worksheets worms yarns years yolks
    zebras zeroes zeros zits zombies zones
    """)
"""Nouns that are counted, in the plural. Some, such as `asparagus`, have no other form."""
_WITHOUT_SINGULAR = frozenset({"quarters", "roots", "people", "children", "men", "women"})
"""Plurals that are not accepted in the singular, because the singular is a different word or changes the number, as in
`1 quarter`."""
_IRREGULAR = name_set(
    "person child man woman vertex matrix die mouse tooth goose leaf loaf knife shelf wolf half-hour index radius axis"
)
"""Singulars of nouns whose plural does not end in s."""
_RANKED = name_set(
    "place position person day week month year row column term floor grade grader century quadrant prize house"
    " element letter digit page chapter car seat"
)
"""Nouns that may follow an ordinal number in the singular, as in 3rd place."""
_COLOURS = name_set(
    "red blue green yellow white black brown pink purple orange grey gray gold golden silver violet"
)
_ADJECTIVES = _COLOURS | name_set("""
    different distinct possible real total ordered unordered unique valid such integer whole natural prime composite
    even odd consecutive complex rational irrational equal identical similar congruent lattice square cubic positive
    nonnegative nonzero distinguishable indistinguishable separate individual single double triple big small
    large little tiny huge long short tall
    new old young full empty good fresh ripe rotten broken raised extra additional more fewer less other remaining
    available complete leftover middle ice-cold jelly swimming washing water toilet meat chocolate
    paper plastic wooden metal
    left correct right wrong winning losing successful favorable favourable final free cheap expensive male female first
    last next previous daily weekly monthly yearly annual school home local regular irregular convex concave simple
    solid plain mixed favorite special common proper improper diagonal vertical horizontal straight curved acute obtuse
    isosceles equilateral scalene unit ice hot cold dry wet spare hard soft sweet fair biased six-sided independent
    pairwise nontrivial trivial two-digit three-digit four-digit two-element three-element ordinary non-empty nonempty
    five-digit six-digit seven-digit eight-digit three-letter four-letter five-letter
    """)
"""Words that may come before a noun."""
_ENDINGS = name_set("""
    of in for on from to per with at the a an each every now today tomorrow yesterday together over ago
    alone total altogether overall apiece left remaining long wide
    high tall deep old away apart inside outside all them these those it this that her his their its our your who which
    arrange choose select pick seat paint color colour order distribute divide split place put form make
    get go travel walk reach pay buy sell assign fill tile cover climb play win draw line group pair
    day week month year hour minute second person student child class time trip side way world group team row set
    water flour sugar milk rice oil paint sand gas fuel juice butter salt paper wood land money food bread meat fruit
    work sleep rain snow gold ground floor table room box bag circle square triangle line plane number
    """)
"""Words that may follow a noun, as in `ways to arrange the letters` or `cups of flour`."""
_ALONE = _COLOURS | name_set("total altogether each left remaining overall apiece exactly")
"""Words that may follow a number without a noun."""
_PERIODS = [[period] for period in ("second", "minute", "hour", "day", "night", "week", "month", "year")]
_CHANGING = name_set("wrong more fewer less extra additional other double triple")
"""Adjectives that change the quantity when they follow a noun, as in `5 apples more`."""
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_NO_NOUN = re.compile(
    r"(?:hal(?:f|ve)|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|\w*teenth|\w*tieth|\w*dth|\w*nth|"
    r"hundred|thousand|\w*[mbtdn]illion|lakh|crore|dozen|score|gros|percent|root|power|inverse|reciprocal|negative"
    r"|factorial|log|time|plu|minu|les|unles|perhap|doe|wa|ha|thi|it|alway|versu|one|two|three|four|five|six|seven"
    r"|eight|nine|ten)s"
)
"""Words that end in s but are not plural nouns, and plurals of number words such as `thirds`."""


def plural_nouns(gold: str) -> frozenset[str]:
    """Returns the plural nouns in a gold answer, and their singulars. A prediction may also count these nouns."""
    words = (word.lower() for word in _WORD.findall(gold))
    plurals = {
        word for word in words if len(word) > 3 and word.endswith("s") and not _NO_NOUN.fullmatch(word)
    }
    return frozenset(plurals | {word[:-1] for word in plurals})


def is_counted(words: list[str], nouns: Set[str], *, one: bool) -> bool:
    """Whether words after a number only say what the number counts.

    Args:
        words: The words after the number, at least one.
        nouns: Nouns that may be counted, in addition to the built-in nouns.
        one: Whether the number is at most one, so that its noun may be in the singular.
    """
    if words[-1:] == ["graders"] and words[-2:-1] and words[-2] in ORDINAL_WORDS:
        words = [*words[:-2], "graders"]
    if words[0] in {"a", "an", "every", "each"} and words[1:] in _PERIODS:
        return True
    if one and words[0] == "of":
        return _is_ending(words[1:], nouns)
    if words[0] == "times":
        return len(words) == 1 or (words[1] in {"a", "an", "per", "each"} and words[2:] in _PERIODS)
    if (
        words[0] in _ALONE
        or words[:2] in (["in", "total"], ["in", "all"])
        or (words[0] == "per" and words[1:])
    ):
        return _is_ending(words[1:], nouns)
    for place, word in enumerate(words):
        if word in _PLURALS or word in nouns or word in _RANKED or (one and _is_singular(word)):
            return _is_ending(words[place + 1 :], nouns)
        if word not in _ADJECTIVES and not _is_singular(word):
            return False
    return False


def _is_ending(words: list[str], nouns: Set[str]) -> bool:
    """Whether words after a noun only describe it, as in `cups of flour`, without adding another quantity."""
    for place, word in enumerate(words):
        if word == "and":
            is_ending = words[place + 1 : place + 2] != [] and words[place + 1] in _PLURALS | nouns
        else:
            is_ending = word in _ENDINGS or (word in _ADJECTIVES and word not in _CHANGING)
        if not (is_ending or word in _PLURALS or word in nouns or _is_singular(word)):
            return False
    return True


def _is_singular(word: str) -> bool:
    plurals = {f"{word}s", f"{word}es", f"{word.removesuffix('y')}ies"}
    return word in _IRREGULAR or any(p in _PLURALS and p not in _WITHOUT_SINGULAR for p in plurals)
